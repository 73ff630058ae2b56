/* tests/server/decode_watch.c - a library that is put before libpng (LD_PRELOAD): writes down, in the file that DECODE_WATCH
 * names, the thread that begins to read a picture.
 */
#include <dlfcn.h>
#include <png.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef png_structp create_fn(png_const_charp, png_voidp, png_error_ptr, png_error_ptr, png_voidp, png_malloc_ptr,
                              png_free_ptr);

png_structp png_create_read_struct_2(png_const_charp version, png_voidp error_arg, png_error_ptr error,
                                     png_error_ptr warn, png_voidp mem_arg, png_malloc_ptr take, png_free_ptr give)
{
    create_fn *real = (create_fn *)dlsym(RTLD_NEXT, "png_create_read_struct_2");
    FILE *out = fopen(getenv("DECODE_WATCH"), "a");
    char name[16] = "";

    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (!out || fprintf(out, "%s\n", name) < 0 || fclose(out)) abort();
    return real(version, error_arg, error, warn, mem_arg, take, give);
}
