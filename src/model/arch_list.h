/* model/arch_list.h - the architectures, a line each: ARCH(name) is `const struct model_arch model_NAME` of archs/NAME.c.
 * registry.c includes it once for each thing that it makes of the rows. */
ARCH(gemma2)
ARCH(gemma3)
ARCH(llama)
ARCH(qwen2)
ARCH(qwen3)
ARCH(qwen2vl)
ARCH(qwen3vl)
