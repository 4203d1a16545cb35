/* What PTX says of its integer instructions and conversions, in C; element by element over n. */
#include <stdint.h>
#include <math.h>

typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int8_t s8; typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
typedef __int128 s128; typedef unsigned __int128 u128;

#define EACH(name, R, A, value) \
  void name(R *d, const A *a, const A *b, const A *c, long n) { \
    for (long i = 0; i < n; i++) { A x = a[i], y = b[i], z = c[i]; (void)y; (void)z; d[i] = (value); } }

/* The least integer divided by -1 traps on x86; wrapped it is itself. */
#define minus_one(T, y) ((T)-1 < 0 && (y) == (T)-1)
#define WHOLE(T, W, bits) \
  EACH(add_##T, T, T, (T)(x + y)) \
  EACH(sub_##T, T, T, (T)(x - y)) \
  EACH(mul_lo_##T, T, T, (T)((W)x * y)) \
  EACH(mul_hi_##T, T, T, (T)(((W)x * y) >> bits)) \
  EACH(mad_lo_##T, T, T, (T)((W)x * y + z)) \
  EACH(min_##T, T, T, x < y ? x : y) \
  EACH(max_##T, T, T, x > y ? x : y) \
  EACH(div_##T, T, T, minus_one(T, y) ? (T)-x : (T)(x / y)) \
  EACH(rem_##T, T, T, minus_one(T, y) ? 0 : (T)(x % y))
WHOLE(u16, u32, 16) WHOLE(s16, s32, 16) WHOLE(u32, u64, 32) WHOLE(s32, s64, 32) WHOLE(u64, u128, 64) WHOLE(s64, s128, 64)

EACH(mul_wide_u16, u32, u16, (u32)x * y) EACH(mul_wide_s16, s32, s16, (s32)x * y)
EACH(mul_wide_u32, u64, u32, (u64)x * y) EACH(mul_wide_s32, s64, s32, (s64)x * y)
EACH(abs_s16, s16, s16, (s16)(x < 0 ? -x : x)) EACH(abs_s32, s32, s32, x < 0 ? -x : x)
EACH(abs_s64, s64, s64, x < 0 ? -x : x)

/* Shifts clamp their amount, a u32: the amount is the low half of y. */
EACH(shl_u32, u32, u32, y > 31 ? 0 : x << y) EACH(shr_u32, u32, u32, y > 31 ? 0 : x >> y)
EACH(shr_s32, s32, s32, x >> ((u32)y > 31 ? 31 : y))
EACH(shl_u64, u64, u64, (u32)y > 63 ? 0 : x << (u32)y) EACH(shr_u64, u64, u64, (u32)y > 63 ? 0 : x >> (u32)y)
EACH(shr_s64, s64, s64, x >> ((u32)y > 63 ? 63 : (u32)y))
EACH(shf_l_clamp, u32, u32, (u32)(((u64)y << 32 | x) << (z > 32 ? 32 : z) >> 32))
EACH(shf_r_clamp, u32, u32, (u32)(((u64)y << 32 | x) >> (z > 32 ? 32 : z)))
EACH(shf_l_wrap, u32, u32, (u32)(((u64)y << 32 | x) << (z & 31) >> 32))
EACH(shf_r_wrap, u32, u32, (u32)(((u64)y << 32 | x) >> (z & 31)))

EACH(popc_u32, u32, u32, (u32)__builtin_popcount(x)) EACH(popc_u64, u32, u64, (u32)__builtin_popcountll(x))
EACH(clz_u32, u32, u32, x ? (u32)__builtin_clz(x) : 32) EACH(clz_u64, u32, u64, x ? (u32)__builtin_clzll(x) : 64)
static u32 reversed(u32 x) { u32 d = 0; for (int i = 0; i < 32; i++) d |= (x >> i & 1) << (31 - i); return d; }
EACH(brev_u32, u32, u32, reversed(x))

/* PTX ISA, bfe: position and length are the low 8 bits; past the end comes the sign of the field, or 0. */
static u32 field(u32 a, u32 b, u32 c, int is_signed) {
  u32 pos = b & 255, len = c & 255, last = pos + len - 1 < 31 ? pos + len - 1 : 31;
  u32 sign = is_signed && len ? a >> last & 1 : 0, d = 0;
  for (u32 i = 0; i < 32; i++) d |= (i < len && pos + i < 32 ? a >> (pos + i) & 1 : sign) << i;
  return d;
}
EACH(bfe_u32, u32, u32, field(x, y, z, 0)) EACH(bfe_s32, u32, u32, field(x, y, z, 1))
static u32 permuted(u32 a, u32 b, u32 c) {
  u64 both = (u64)b << 32 | a; u32 d = 0;
  for (int i = 0; i < 4; i++) {
    u32 pick = c >> 4 * i & 15; u8 byte = (u8)(both >> 8 * (pick & 7));
    d |= (u32)(u8)(pick & 8 ? (s8)byte >> 7 : byte) << 8 * i;
  }
  return d;
}
EACH(prmt, u32, u32, permuted(x, y, z))

/* Conversions to integers saturate; NaN is 0, or the top bit alone where 64-bit types take part (PTX ISA, cvt). */
#define TO_INTEGER(T, F, low, high) \
  static T to_##T##_##F(F x) { return x != x ? (T)(sizeof(F) < 8 && sizeof(T) < 8 ? 0 : 1ull << (8 * sizeof(T) - 1)) : x <= low ? (T)low : x >= high ? (T)(low < 0 ? -((s128)low + 1) : (u128)high - 1) : (T)x; } \
  EACH(rzi_##T##_##F, T, F, to_##T##_##F(x)) \
  EACH(rni_##T##_##F, T, F, to_##T##_##F((F)nearbyint((double)x))) \
  EACH(rmi_##T##_##F, T, F, to_##T##_##F((F)floor((double)x))) \
  EACH(rpi_##T##_##F, T, F, to_##T##_##F((F)ceil((double)x)))
typedef float f32; typedef double f64;
TO_INTEGER(s32, f32, -0x1p31, 0x1p31) TO_INTEGER(u32, f32, 0.0, 0x1p32)
TO_INTEGER(s32, f64, -0x1p31, 0x1p31) TO_INTEGER(u32, f64, 0.0, 0x1p32)
TO_INTEGER(s16, f32, -0x1p15, 0x1p15) TO_INTEGER(u16, f32, 0.0, 0x1p16)
TO_INTEGER(s64, f32, -0x1p63, 0x1p63) TO_INTEGER(u64, f32, 0.0, 0x1p64)
TO_INTEGER(s64, f64, -0x1p63, 0x1p63) TO_INTEGER(u64, f64, 0.0, 0x1p64)

EACH(rn_f32_s32, f32, s32, (f32)x) EACH(rn_f32_u32, f32, u32, (f32)x)
EACH(rn_f32_s64, f32, s64, (f32)x) EACH(rn_f32_u64, f32, u64, (f32)x)
EACH(rn_f64_s64, f64, s64, (f64)x) EACH(rn_f64_u64, f64, u64, (f64)x)
EACH(rn_f32_f64, f32, f64, (f32)x) EACH(f64_f32, f64, f32, (f64)x)
#ifdef __FLT16_MAX__
EACH(rn_f16_f32, _Float16, f32, (_Float16)x)
EACH(f32_f16, f32, _Float16, (f32)x)
EACH(rn_f16_f64, _Float16, f64, (_Float16)x)
EACH(rn_f16_s32, _Float16, s32, (_Float16)x)
#endif

/* Narrowing keeps the low bits, .sat clamps. */
EACH(u8_u32, u32, u32, (u8)x) EACH(s8_s32, s32, s32, (s8)x) EACH(s64_s32, s64, s32, (s64)x)
EACH(sat_s8_s32, s32, s32, x < -128 ? -128 : x > 127 ? 127 : x)
EACH(sat_u8_s32, s32, s32, x < 0 ? 0 : x > 255 ? 255 : x)
EACH(sat_s16_s32, s32, s32, x < -32768 ? -32768 : x > 32767 ? 32767 : x)
