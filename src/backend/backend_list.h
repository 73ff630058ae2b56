/* backend/backend_list.h - the backends, a line each: BACKEND(name, ONE) or, where devices have numbers (--device NAME:N),
 * BACKEND(name, MANY). `auto` takes the last that can be used and is not by_name.
 *
 * backend_registry.c includes it once for each thing that it makes of the rows, and CMakeLists.txt reads it: the option
 * RADISH_NAME builds a backend in, except for the first, which every build has. A row stands for a folder NAME/ with
 *     backend_NAME_ops     struct backend_ops (backend.h), compiled with the option
 *     backend_NAME_about   struct backend_about (device_probe.h) in NAME_probe.c, which is always compiled
 */
BACKEND(cpu, ONE)
BACKEND(mlx, ONE)
BACKEND(cuda, MANY)
