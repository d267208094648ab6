// ping_pong.cuh: the pipeline of warp-specialized kernels with two consumer warpgroups that alternate on the tensor
// cores (ping-pong): one multiplies while the other runs its epilogue. A producer in a third warpgroup loads chunks of
// the operands, and the two blocks of a cluster load shared chunks for each other.
#pragma once

#include "common/cuda_hopper.cuh"

namespace fvlm::plugins::hopper {

constexpr int cluster_blocks = 2; // per cluster
// The attribute of such a kernel; empty for architectures without clusters, where the kernel is empty, too.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define FVLM_CLUSTER_OF_TWO __cluster_dims__(cluster_blocks)
#else
#define FVLM_CLUSTER_OF_TWO
#endif
constexpr int stages = 5, consumer_warpgroups = 2, block_threads = (consumer_warpgroups + 1) * warpgroup_threads;
constexpr int consumer_registers = 240, producer_registers = 24;

using Stage = PipelineStage<stages>;

struct PingPong {
  Barrier full[stages], empty[stages], may_multiply[consumer_warpgroups];

  // Initializes the barriers. Called by all threads of the cluster.
  __device__ void begin() {
    if (threadIdx.x == 0) {
      for (Barrier& each : full) each.init(1);
      for (Barrier& each : empty) each.init(warpgroup_warps * cluster_blocks);
      for (Barrier& each : may_multiply) each.init(warpgroup_warps);
      Barrier::fence_init();
    }
    cluster_sync();
  }

  // Waits for this warpgroup's turn, which starts when the other one has seen all of its chunks arrive: the parity of a
  // stage's barrier cannot distinguish its two latest chunks. All warps have to hand over, since otherwise the other
  // warpgroup's turn could end before a slow warp has seen its own begin.
  __device__ void wait(int group, int iteration) {
    may_multiply[group].wait(static_cast<unsigned>(iteration + 1 - group) & 1);
  }
  __device__ void hand_over(int group) {
    if (threadIdx.x % warp_size == 0) may_multiply[consumer_warpgroups - 1 - group].arrive();
  }
  // Releases a chunk, in both blocks of the cluster. Called by every warp.
  __device__ void release(unsigned chunk) {
    if (threadIdx.x % warp_size < cluster_blocks) empty[Stage(chunk).index].arrive_remote(threadIdx.x % warp_size);
  }
};

} // namespace fvlm::plugins::hopper
