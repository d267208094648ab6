// Who this process is among those that a launcher started together, and where they meet: torchrun's variables (RANK,
// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) or those of Slurm's srun.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace fvlm::dist {

struct Launch {
  int64_t rank = 0, ranks = 1, local_rank = 0; // local: on this machine
  int64_t local_ranks = 1;                     // srun gives each its own cores: 1 there
  std::string host;                            // where the store is
  uint16_t port = 0;
  bool has_store = false; // the launcher itself serves it; otherwise rank 0 does
  int64_t attempt = 0;    // how often the launcher has started the ranks anew
};

// None: nobody started several processes. Throws Error(usage) for variables that make no sense.
std::optional<Launch> launch_of_environment();

// Makes this machine's GPU of the rank the only one that the process sees. Call it before CUDA is initialized. [setup]
void choose_gpu(const Launch& launch);

// "node[03-05,9],login" has the first host node03.
std::string first_host(const std::string& list);

} // namespace fvlm::dist
