// Threads of one block together: shared memory, warps, barriers.
extern "C" __global__ void reduce_tree(const float* x, float* out, int n) {
  __shared__ float part[256];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  part[t] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) part[t] += part[t + half];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = part[0];
}

extern "C" __global__ void reduce_warps(const int* x, int* out, int n) {
  __shared__ int part[32];
  int t = threadIdx.x, sum = 0;
  for (int i = t; i < n; i += blockDim.x) sum += x[i];
  for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (t % 32 == 0) part[t / 32] = sum;
  __syncthreads();
  if (t < 32) {
    sum = t < blockDim.x / 32 ? part[t] : 0;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (t == 0) *out = sum;
  }
}

extern "C" __global__ void scan_shared(const int* x, int* out, int n) {
  extern __shared__ int buffer[];
  int t = threadIdx.x, from = 0;
  buffer[t] = t < n ? x[t] : 0;
  __syncthreads();
  for (int d = 1; d < blockDim.x; d *= 2, from ^= 1) {
    int* source = buffer + from * blockDim.x;
    int* target = buffer + (from ^ 1) * blockDim.x;
    target[t] = source[t] + (t >= d ? source[t - d] : 0);
    __syncthreads();
  }
  if (t < n) out[t] = buffer[from * blockDim.x + t];
}

extern "C" __global__ void scan_warps(const int* x, int* out) {
  int value = x[threadIdx.x], lane = threadIdx.x % 32;
  for (int d = 1; d < 32; d *= 2) {
    int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  out[threadIdx.x] = value;
}

extern "C" __global__ void transpose(const float* x, float* out, int rows, int columns) {
  __shared__ float tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x;
  for (int r = threadIdx.y; r < 32; r += 8)
    if (blockIdx.y * 32 + r < rows && c < columns) tile[r][threadIdx.x] = x[(blockIdx.y * 32 + r) * columns + c];
  __syncthreads();
  int r = blockIdx.y * 32 + threadIdx.x;
  for (int k = threadIdx.y; k < 32; k += 8)
    if (blockIdx.x * 32 + k < columns && r < rows) out[(blockIdx.x * 32 + k) * rows + r] = tile[threadIdx.x][k];
}

extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float x[16][16], y[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int start = 0; start < k; start += 16) {
    x[threadIdx.y][threadIdx.x] = row < m && start + threadIdx.x < k ? a[row * k + start + threadIdx.x] : 0;
    y[threadIdx.y][threadIdx.x] = column < n && start + threadIdx.y < k ? b[(start + threadIdx.y) * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += x[threadIdx.y][i] * y[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void histogram(const unsigned char* x, unsigned* out, int n) {
  __shared__ unsigned bins[256];
  for (int b = threadIdx.x; b < 256; b += blockDim.x) bins[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i]], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 256; b += blockDim.x)
    if (bins[b]) atomicAdd(&out[b], bins[b]);
}

extern "C" __global__ void softmax_rows(const float* x, float* out, int n) {
  __shared__ float part[8];
  int t = threadIdx.x, warp = t / 32;
  const float* row = x + blockIdx.x * n;
  float top = -3.0e38f;
  for (int i = t; i < n; i += 256) top = fmaxf(top, row[i]);
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
  if (t % 32 == 0) part[warp] = top;
  __syncthreads();
  for (int w = 0; w < 8; ++w) top = fmaxf(top, part[w]);
  __syncthreads();
  float sum = 0;
  for (int i = t; i < n; i += 256) sum += __expf(row[i] - top);
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (t % 32 == 0) part[warp] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < 8; ++w) sum += part[w];
  for (int i = t; i < n; i += 256) out[blockIdx.x * n + i] = __expf(row[i] - top) / sum;
}

extern "C" __global__ void layernorm_warp(const float* x, float* out, int n) {
  int lane = threadIdx.x, row = blockIdx.x * blockDim.y + threadIdx.y;
  const float* values = x + row * n;
  float sum = 0, squares = 0;
  for (int i = lane; i < n; i += 32) sum += values[i], squares += values[i] * values[i];
  for (int d = 16; d > 0; d /= 2) {
    sum += __shfl_down_sync(~0u, sum, d);
    squares += __shfl_down_sync(~0u, squares, d);
  }
  sum = __shfl_sync(~0u, sum, 0);
  squares = __shfl_sync(~0u, squares, 0);
  float mean = sum / n, scale = rsqrtf(squares / n - mean * mean + 1e-5f);
  for (int i = lane; i < n; i += 32) out[row * n + i] = (values[i] - mean) * scale;
}

extern "C" __global__ void group_by_value(const unsigned* x, unsigned* out) {
  unsigned value = x[threadIdx.x], peers = __match_any_sync(~0u, value);
  out[threadIdx.x] = peers;
  out[blockDim.x + threadIdx.x] = __reduce_add_sync(~0u, value);
  out[2 * blockDim.x + threadIdx.x] = __reduce_max_sync(peers, threadIdx.x);
  int agree;
  out[3 * blockDim.x + threadIdx.x] = __match_all_sync(~0u, value & 0, &agree) + agree;
}

extern "C" __global__ void count_votes(const int* x, int* out) {
  int value = x[threadIdx.x];
  int count = __syncthreads_count(value > 0), all = __syncthreads_and(value > -100), any = __syncthreads_or(value > 90);
  out[threadIdx.x] = count * 4 + all * 2 + any;
}

extern "C" __global__ void bitonic_sort(unsigned* x) {
  __shared__ unsigned keys[512];
  int t = threadIdx.x;
  keys[t] = x[t], keys[t + 256] = x[t + 256];
  __syncthreads();
  for (int size = 2; size <= 512; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      int i = 2 * t - (t & (stride - 1)), j = i + stride;
      bool up = (i & size) == 0;
      if ((keys[i] > keys[j]) == up) {
        unsigned swap = keys[i];
        keys[i] = keys[j], keys[j] = swap;
      }
      __syncthreads();
    }
  x[t] = keys[t], x[t + 256] = keys[t + 256];
}

// Warps 0 and 1 fill, warps 2 and 3 take away; two named barriers a slot (PTX ISA, bar.sync and bar.arrive).
extern "C" __global__ void producer_consumer(const int* x, int* out, int rounds) {
  __shared__ int slot[64];
  int t = threadIdx.x % 64;
  if (threadIdx.x < 64) {
    for (int round = 0; round < rounds; ++round) {
      asm volatile("bar.sync 2, 128;" ::: "memory");
      slot[t] = x[round * 64 + t];
      asm volatile("bar.arrive 1, 128;" ::: "memory");
    }
  } else {
    int sum = 0;
    asm volatile("bar.arrive 2, 128;" ::: "memory");
    for (int round = 0; round < rounds; ++round) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      sum += slot[t ^ 33];
      if (round + 1 < rounds) asm volatile("bar.arrive 2, 128;" ::: "memory");
    }
    out[t] = sum;
  }
}

extern "C" __global__ void warp_exchange(const int* x, int* out) {
  __shared__ int slot[4][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  slot[warp][lane] = x[threadIdx.x];
  __syncwarp();
  int value = slot[warp][lane ^ 5];
  __syncwarp();
  slot[warp][31 - lane] = value;
  __syncwarp();
  out[threadIdx.x] = slot[warp][lane];
}

extern "C" __global__ void odd_block(const int* x, int* out, int n) {
  __shared__ int part[75];
  int t = threadIdx.x;
  part[t] = t < n ? x[t] : 0;
  __syncthreads();
  if (t < n) out[t] = part[blockDim.x - 1 - t] + __popc(__activemask());
}
