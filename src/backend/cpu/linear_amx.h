/* backend/cpu/linear_amx.h - the state of the matrix unit; shared by linear_amx.c and linear_k_amx.c.
 *
 * gcc 12's intrinsics do not declare what memory they touch: everything here is asm with operands and a memory clobber.
 * The tile state lives from ldtilecfg to tilerelease, within one call.
 */
#pragma once
#include <stdint.h>

struct tile_config {                     /* Intel SDM volume 1, section 18.3: palette 1 */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

static inline void tiles_configure(const struct tile_config *c)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*c) : "memory");
}

static inline void tiles_release(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}
