// NVML, libnvidia-ml.so.1, which reports on a GPU without a CUDA context. The library is loaded at run time and its
// signatures are stable; what it lacks or does not report is empty.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::device {

class Nvml {
 public:
  // Of the GPU at this PCI bus id. Null where the library, its basic functions or the GPU are missing.
  static std::unique_ptr<Nvml> open(const std::string& bus);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  struct Memory {
    uint64_t total = 0, free = 0;
  };
  struct Process {
    unsigned id;
    std::optional<uint64_t> bytes;
  };
  // [any thread]
  std::optional<Memory> memory() const;
  std::vector<Process> processes() const;     // that compute; may lack those of other containers
  std::optional<double> sm_megahertz() const; // the clock of the multiprocessors now
  // Of the last moments, at most a second: the share in which a kernel ran.
  std::optional<double> utilization() const;
  std::optional<double> watts() const; // of the whole board, on recent GPUs over the last second

 private:
  struct Functions;
  Nvml(std::unique_ptr<Functions> functions, void* gpu);
  std::unique_ptr<Functions> functions_;
  void* gpu_;
};

} // namespace fvlm::device
