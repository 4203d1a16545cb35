// Tensor maps and wgmma: c (m, n) = a (m, k) b (n, k)^T, tiles of 64 by 64 in steps of 64, two stages of copies.
// PLANT is a fault, 0 for none.
#ifndef PLANT
#define PLANT 0
#endif

struct alignas(64) Map {
  unsigned long long opaque[16];
};

constexpr int TILE = 64, BYTES = 2 * TILE * TILE, STAGES = 2;

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra AGAIN;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ void load(unsigned to, const Map* map, int x, int y, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// A tile of 64 rows of 128 bytes in 128-byte swizzle, at a multiple of 32 bytes of its rows.
__device__ unsigned long long descriptor(unsigned address) {
  return (address >> 4 & 0x3FFF) | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

__device__ void multiply(float (&d)[32], unsigned long long a, unsigned long long b) {
  asm volatile(
      "{\n\t.reg .pred adds;\n\tsetp.eq.u32 adds, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, "
      "adds, 1, 1, 0, 0;\n\t}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

extern "C" __global__ void tensor_matmul(const __grid_constant__ Map a, const __grid_constant__ Map b,
                                         const __grid_constant__ Map c, int k) {
  __shared__ alignas(1024) unsigned char tiles[STAGES][2][BYTES];
  __shared__ alignas(128) float sums[TILE][TILE];
  __shared__ unsigned long long full[STAGES];
  int row = blockIdx.y * TILE, column = blockIdx.x * TILE, steps = (k + TILE - 1) / TILE;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("prefetch.tensormap [%0];" ::"l"(&a));
  }
  __syncthreads();
  auto fetch = [&](int step) {
    unsigned barrier = shared_address(&full[step % STAGES]), to = shared_address(tiles[step % STAGES]);
    int expected = PLANT == 1 ? BYTES : PLANT == 2 ? 3 * BYTES : 2 * BYTES;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(expected) : "memory");
    load(to + (PLANT == 3 ? 16 : 0), &a, step * TILE, row, barrier);
    load(to + BYTES, &b, step * TILE, column, barrier);
  };
  if (threadIdx.x == 0)
    for (int step = 0; step < STAGES && step < steps; ++step) fetch(step);
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = 0;
  for (int step = 0; step < steps; ++step) {
    int stage = step % STAGES;
    if (PLANT != 4) wait(shared_address(&full[PLANT == 5 ? 0 : stage]), step / STAGES & 1);
    unsigned x = shared_address(tiles[stage][0]), y = shared_address(tiles[stage][1]);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < TILE; i += 16) multiply(d, descriptor(x + 2 * i), descriptor(y + 2 * i));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (PLANT != 6) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0 && step + STAGES < steps) fetch(step + STAGES);
  }
  int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
  for (int i = 0; i < 32; ++i) sums[first + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
  if (PLANT != 7) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (PLANT != 8) __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&c), "r"(column),
        "r"(row), "r"(shared_address(sums))
        : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (PLANT != 9) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    sums[0][0] = 0;
  }
}
