// ping_pong.cuh: what kernels share whose two groups of warps take the tensor cores in turn, one multiplying while the
// other sees to its results. A third group fetches chunks of the operands; the two blocks of a cluster do so for each
// other.
#pragma once

#include "common/cuda_hopper.cuh"

namespace fvlm::plugins::hopper {

constexpr int cluster_blocks = 2; // blocks of a cluster
// For a kernel, which is empty for devices that have none.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define FVLM_CLUSTER_OF_TWO __cluster_dims__(cluster_blocks)
#else
#define FVLM_CLUSTER_OF_TWO
#endif
constexpr int stages = 5, consumer_warpgroups = 2, block_threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int consumer_registers = 240, producer_registers = 24;

// Where the chunk lies that is the block's `count`-th.
struct Stage {
  unsigned index, parity;

  __device__ explicit Stage(unsigned count) : index(count % stages), parity(count / stages % 2) {}
};

struct PingPong {
  Barrier full[stages], empty[stages], may_multiply[consumer_warpgroups];

  // By all threads of the cluster.
  __device__ void begin() {
    if (threadIdx.x == 0) {
      for (Barrier& each : full) each.init(1);
      for (Barrier& each : empty) each.init(warpgroup_warps * cluster_blocks);
      for (Barrier& each : may_multiply) each.init(warpgroup_warps);
      Barrier::fence_init();
    }
    cluster_sync();
  }

  // A group's turn begins when the other one has seen all its chunks arrive: of a stage's two latest chunks the parity
  // cannot tell which has. All its warps pass it on: for one that still has to see its own turn begin the other's end
  // would undo that.
  __device__ void wait(int group, int iteration) {
    may_multiply[group].wait(static_cast<unsigned>(iteration + 1 - group) & 1);
  }
  __device__ void hand_over(int group) {
    if (threadIdx.x % warp_size == 0) may_multiply[consumer_warpgroups - 1 - group].arrive();
  }
  // A warp has done with a chunk. Both blocks are told.
  __device__ void release(unsigned chunk) {
    if (threadIdx.x % warp_size < cluster_blocks) empty[Stage(chunk).index].arrive_remote(threadIdx.x % warp_size);
  }
};

} // namespace fvlm::plugins::hopper
