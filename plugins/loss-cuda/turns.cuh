// turns.cuh: what kernels share whose two groups of warps take the tensor cores in turn, one multiplying while the
// other sees to its results. A third group fetches chunks of the operands; the two blocks of a cluster do so for each
// other.
#pragma once

#include "common/cuda_hopper.cuh"

namespace fvlm::plugins::hopper {

constexpr int together = 2; // blocks of a cluster
// For a kernel, which is empty for devices that have none.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define FVLM_TOGETHER __cluster_dims__(together)
#else
#define FVLM_TOGETHER
#endif
constexpr int stages = 5, turn_groups = 2, turn_threads = (turn_groups + 1) * group_threads;
constexpr int multiplying_registers = 240, fetching_registers = 24;

// Where the chunk lies that is the block's `count`-th.
struct Stage {
  unsigned index, parity;

  __device__ explicit Stage(unsigned count) : index(count % stages), parity(count / stages % 2) {}
};

struct Turns {
  Barrier there[stages], free[stages], begins[turn_groups];

  // By all threads of the cluster.
  __device__ void begin() {
    if (threadIdx.x == 0) {
      for (Barrier& each : there) each.begin(1);
      for (Barrier& each : free) each.begin(group_warps * together);
      for (Barrier& each : begins) each.begin(group_warps);
      Barrier::begun();
    }
    meet_cluster();
  }

  // A group's turn begins when the other one has seen all its chunks arrive: of a stage's two latest chunks the parity
  // cannot tell which has. All its warps pass it on: for one that still has to see its own turn begin the other's end
  // would undo that.
  __device__ void wait(int group, int turn) { begins[group].wait(static_cast<unsigned>(turn + 1 - group) & 1); }
  __device__ void pass_on(int group) {
    if (threadIdx.x % warp == 0) begins[turn_groups - 1 - group].arrive();
  }
  // A warp has done with a chunk. Both blocks are told.
  __device__ void leave(unsigned chunk) {
    if (threadIdx.x % warp < together) free[Stage(chunk).index].arrive_at(threadIdx.x % warp);
  }
};

} // namespace fvlm::plugins::hopper
