// NCCL's library, which LibTorch for CUDA brings along: loaded when ranks first meet on GPUs, so that a machine without
// any runs. The declarations are those of nccl.h that have stayed the same since NCCL 2.7.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fvlm::dist::nccl {

struct UniqueId {
  std::array<char, 128> bytes;
};
using Communicator = void*; // ncclComm_t
using Stream = void*;       // cudaStream_t
enum class Type : int { uint8 = 1, int64 = 4, float16 = 6, float32 = 7, float64 = 8, bfloat16 = 9 };
enum class Operation : int { sum = 0, max = 2 };

struct Library {
  int (*get_version)(int* version); // 22703: 2.27.3
  int (*get_unique_id)(UniqueId* id);
  int (*init_rank)(Communicator* communicator, int ranks, UniqueId id, int rank);
  int (*abort)(Communicator communicator);
  const char* (*error_string)(int result);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* send, void* receive, size_t count, Type type, Operation operation,
                    Communicator communicator, Stream stream);
  int (*broadcast)(const void* send, void* receive, size_t count, Type type, int root, Communicator communicator,
                   Stream stream);
  int (*reduce_scatter)(const void* send, void* receive, size_t count, Type type, Operation operation,
                        Communicator communicator, Stream stream);
  int (*all_gather)(const void* send, void* receive, size_t count, Type type, Communicator communicator, Stream stream);
  int (*reduce)(const void* send, void* receive, size_t count, Type type, Operation operation, int root,
                Communicator communicator, Stream stream);
  int (*send)(const void* send, size_t count, Type type, int to, Communicator communicator, Stream stream);
  int (*receive)(void* receive, size_t count, Type type, int from, Communicator communicator, Stream stream);

  // Throws Error(device) for a result that is not success.
  void check(int result, const char* what) const;
};

// Throws Error(device) where it cannot be loaded.
const Library& library();
std::string version(); // "2.27.3"

} // namespace fvlm::dist::nccl
