// Tensor cores and copies: wmma, mma by inline PTX, cp.async pipelines, mbarrier.
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>
using namespace nvcuda;

extern "C" __global__ void wmma_f16(const __half* a, const __half* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * 16, column = blockIdx.x * 16;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int start = 0; start < k; start += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> y;
    wmma::load_matrix_sync(x, a + row * k + start, k);
    wmma::load_matrix_sync(y, b + column * k + start, k);
    wmma::mma_sync(sum, x, y, sum);
  }
  for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2.0f;
  wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}

extern "C" __global__ void wmma_s8(const signed char* a, const signed char* b, int* c, int n, int k) {
  __shared__ __align__(32) signed char tile[16 * 16];
  int row = blockIdx.y * 16, column = blockIdx.x * 16;
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> sum;
  wmma::fill_fragment(sum, 0);
  for (int start = 0; start < k; start += 16) {
    for (int i = threadIdx.x; i < 256; i += 32) tile[i] = a[(row + i / 16) * k + start + i % 16];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> x;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::row_major> y;
    wmma::load_matrix_sync(x, tile, 16);
    wmma::load_matrix_sync(y, b + start * n + column, n);
    wmma::mma_sync(sum, x, y, sum);
    __syncwarp();
  }
  wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}

// c (16, 8) = a (16, k) b (8, k)^T, one warp, ldmatrix and mma by inline PTX.
extern "C" __global__ void mma_f16(const __half* a, const __half* b, float* c, int k) {
  __shared__ __align__(16) __half x[16][24], y[8][24];
  int lane = threadIdx.x;
  float sum[4] = {0, 0, 0, 0};
  for (int start = 0; start < k; start += 16) {
    for (int i = lane; i < 256; i += 32) x[i / 16][i % 16] = a[i / 16 * k + start + i % 16];
    for (int i = lane; i < 128; i += 32) y[i / 16][i % 16] = b[i / 16 * k + start + i % 16];
    __syncthreads();
    unsigned p[4], q[2];
    unsigned xs = (unsigned)__cvta_generic_to_shared(&x[lane % 16][lane / 16 * 8]);
    unsigned ys = (unsigned)__cvta_generic_to_shared(&y[lane % 8][lane / 8 % 2 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3]) : "r"(xs));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(q[0]), "=r"(q[1]) : "r"(ys));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(q[0]), "r"(q[1]));
    __syncthreads();
  }
  int row = lane / 4, column = lane % 4 * 2;
  c[row * 8 + column] = sum[0], c[row * 8 + column + 1] = sum[1];
  c[(row + 8) * 8 + column] = sum[2], c[(row + 8) * 8 + column + 1] = sum[3];
}

// Sums rows of x through a ring of three shared stages.
extern "C" __global__ void pipeline_sum(const float4* x, float4* out, int rows) {
  __shared__ float4 stage[3][64];
  int t = threadIdx.x;
  for (int s = 0; s < 2; ++s) {
    if (s < rows) __pipeline_memcpy_async(&stage[s][t], &x[s * 64 + t], 16);
    __pipeline_commit();
  }
  float4 sum = {0, 0, 0, 0};
  for (int row = 0; row < rows; ++row) {
    __pipeline_wait_prior(1);
    __syncthreads();
    float4 value = stage[row % 3][(t + 1) % 64];
    sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
    int next = row + 2;
    if (next < rows) __pipeline_memcpy_async(&stage[next % 3][t], &x[next * 64 + t], 16);
    __pipeline_commit();
  }
  out[t] = sum;
}

// Threads of the second warp wait at an mbarrier until the first has filled the buffer.
extern "C" __global__ void mbarrier_handover(const int* x, int* out) {
  __shared__ __align__(8) unsigned long long barrier;
  __shared__ int buffer[32];
  unsigned address = (unsigned)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(address) : "memory");
  __syncthreads();
  int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    buffer[lane] = x[lane] * 2;
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(address) : "memory");
  } else {
    asm volatile(
        "{\n\t.reg .pred done;\n\tAGAIN:\n\tmbarrier.test_wait.parity.shared.b64 done, [%0], 0;\n\t@!done bra AGAIN;\n\t}" ::"r"(
            address)
        : "memory");
    out[lane] = buffer[31 - lane];
  }
}

extern "C" __global__ void dot_bytes(const int* a, const int* b, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __dp4a(a[i], b[i], (int)__byte_perm(a[i], b[i], 0x2607));
}
