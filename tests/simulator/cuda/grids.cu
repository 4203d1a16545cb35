// Blocks together: fences, atomics, spin-waits.
__device__ unsigned finished;

extern "C" __global__ void reduce_last_block(const int* x, int* partial, int* out, int n) {
  __shared__ int part[8];
  __shared__ bool last;
  int t = threadIdx.x, sum = 0;
  for (int i = blockIdx.x * blockDim.x + t; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  sum = __reduce_add_sync(~0u, sum);
  if (t % 32 == 0) part[t / 32] = sum;
  __syncthreads();
  if (t == 0) {
    sum = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += part[w];
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(&finished, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    __threadfence();
    sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += partial[b];
    *out = sum;
  }
}

// Every block writes, meets all others at a barrier of the grid, and reads what its neighbour wrote.
extern "C" __global__ void grid_barrier(int* data, unsigned* arrived, int* out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  data[i] = i * 3;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*(volatile unsigned*)arrived < gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
  out[i] = data[(i + blockDim.x) % n];
}

extern "C" __global__ void spin_lock(unsigned* lock, int* total, int* trace) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0u, 1u) != 0u) {
    }
    __threadfence();
    int before = *(volatile int*)total;
    *(volatile int*)total = before + (int)blockIdx.x + 1;
    __threadfence();
    atomicExch(lock, 0u);
    trace[blockIdx.x] = before;
  }
}

extern "C" __global__ void add_double(const double* x, unsigned long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long old = *(volatile unsigned long long*)out, seen;
  do {
    seen = old;
    old = atomicCAS(out, seen, __double_as_longlong(__longlong_as_double(seen) + x[i]));
  } while (old != seen);
}

extern "C" __global__ void atomic_kinds(const int* x, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&out[0], x[i]);
  atomicMin(&out[1], x[i]);
  atomicMax(&out[2], x[i]);
  atomicAnd((unsigned*)&out[3], (unsigned)x[i]);
  atomicOr((unsigned*)&out[4], (unsigned)x[i]);
  atomicXor((unsigned*)&out[5], (unsigned)x[i]);
  atomicInc((unsigned*)&out[6], 9u);
  atomicSub(&out[7], x[i]);
}

extern "C" __global__ void work_queue(const int* x, int* next, int* out, int n) {
  __shared__ int item;
  for (;;) {
    if (threadIdx.x == 0) item = atomicAdd(next, 1);
    __syncthreads();
    int mine = item;
    __syncthreads();
    if (mine >= n) return;
    out[mine * blockDim.x + threadIdx.x] = x[mine] * (int)threadIdx.x;
  }
}
