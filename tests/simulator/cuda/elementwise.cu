// One thread an element: arithmetic, conversions, control flow, local memory, device functions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void saxpy(const float* x, const float* y, float* out, float a, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = a * x[i] + y[i];
}

__device__ __noinline__ int collatz_steps(unsigned value) {
  int steps = 0;
  while (value != 1 && steps < 1000) {
    value = value & 1 ? 3 * value + 1 : value / 2;
    ++steps;
  }
  return steps;
}

extern "C" __global__ void collatz(const unsigned* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = collatz_steps(x[i]);
}

struct Pair {
  long long low, high;
};
__device__ __noinline__ Pair ordered(long long a, long long b) { return a < b ? Pair{a, b} : Pair{b, a}; }

extern "C" __global__ void order_pairs(const long long* x, long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Pair pair = ordered(x[2 * i], x[2 * i + 1]);
  out[2 * i] = pair.low;
  out[2 * i + 1] = pair.high;
}

extern "C" __global__ void local_digits(const unsigned* x, unsigned* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned char digits[16];
  unsigned value = x[i];
  int count = 0;
  do {
    digits[count++] = value % 10;
    value /= 10;
  } while (value);
  unsigned reversed = 0;
  for (int d = 0; d < count; ++d) reversed = reversed * 10 + digits[(d * 7 + count - 1 - d * 7 + d) % count == d ? d : d];
  out[i] = reversed;
}

extern "C" __global__ void wide_integers(const unsigned long long* a, const unsigned long long* b, unsigned long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned __int128 x = a[i], y = b[i];
  unsigned __int128 sum = (x << 64 | y) + (y << 64 | x);
  unsigned __int128 product = x * y;
  out[6 * i] = (unsigned long long)sum;
  out[6 * i + 1] = (unsigned long long)(sum >> 64);
  out[6 * i + 2] = (unsigned long long)product;
  out[6 * i + 3] = (unsigned long long)(product >> 64);
  out[6 * i + 4] = a[i] / (b[i] | 1);
  out[6 * i + 5] = a[i] % (b[i] | 1);
}

extern "C" __global__ void carry_chain(const unsigned* a, const unsigned* b, unsigned* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  a += 4 * i, b += 4 * i, out += 8 * i;
  asm("add.cc.u32 %0, %4, %8;\n\taddc.cc.u32 %1, %5, %9;\n\taddc.cc.u32 %2, %6, %10;\n\taddc.u32 %3, %7, %11;"
      : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));
  asm("sub.cc.u32 %0, %4, %8;\n\tsubc.cc.u32 %1, %5, %9;\n\tsubc.cc.u32 %2, %6, %10;\n\tsubc.u32 %3, %7, %11;"
      : "=r"(out[4]), "=r"(out[5]), "=r"(out[6]), "=r"(out[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));
}

extern "C" __global__ void polynomial_f64(const double* x, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = sqrt(fma(fma(x[i], 0.25, 1.5), x[i], 4.0)) / (x[i] * x[i] + 1.0);
}

extern "C" __global__ void half2_axpy(const __half2* x, const __half2* y, __half2* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hmax2(__hfma2(__float2half2_rn(a), x[i], y[i]), __hadd2(x[i], y[i]));
}

extern "C" __global__ void bfloat16_mix(const float* x, __nv_bfloat16* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hmul(__float2bfloat16(x[i]), __float2bfloat16(1.5f));
}

extern "C" __global__ void conversions(const float* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[8 * i] = __float2int_rn(x[i]);
  out[8 * i + 1] = __float2int_rz(x[i]);
  out[8 * i + 2] = __float2int_rd(x[i]);
  out[8 * i + 3] = __float2int_ru(x[i]);
  out[8 * i + 4] = (int)__float2uint_rn(x[i]);
  out[8 * i + 5] = (signed char)(int)x[i];
  out[8 * i + 6] = __float_as_int(__fadd_rd(x[i], 0.1f));
  out[8 * i + 7] = __float_as_int(__fmul_ru(x[i], 0.1f));
}

extern "C" __global__ void special_functions(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[6 * i] = __expf(x[i]);
  out[6 * i + 1] = __logf(fabsf(x[i]) + 0.125f);
  out[6 * i + 2] = sinf(x[i]);
  out[6 * i + 3] = cosf(x[i]);
  out[6 * i + 4] = powf(fabsf(x[i]), 1.5f);
  out[6 * i + 5] = tanhf(x[i]);
}

extern "C" __global__ void state_machine(const unsigned char* x, unsigned* out, int n, int length) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned value = 1;
  for (int step = 0; step < length; ++step) {
    switch (x[i * length + step] % 9) {
      case 0: value += 3; break;
      case 1: value *= 5; break;
      case 2: value ^= 0x5a5a; break;
      case 3: value = __brev(value); break;
      case 4: value -= 77; break;
      case 5: value = value << 3 | value >> 29; break;
      case 6: value = __popc(value) + value; break;
      case 7: value = __byte_perm(value, 0x12345678, 0x5126); break;
      default: value = ~value;
    }
  }
  out[i] = value;
}

__constant__ float taps[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};

extern "C" __global__ void stencil_constant(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int tap = 0; tap < 5; ++tap) {
    int j = i + tap - 2;
    if (j >= 0 && j < n) sum += taps[tap] * x[j];
  }
  out[i] = sum;
}
