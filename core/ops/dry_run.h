// DryRun: computing with sizes alone, to know the memory that a computation needs without doing it. While a DryRun
// lives, tensors on ATen's meta device, which have no content, stand for tensors of a device: operations select
// plugins for that device and ask them for their requirements, but call none, and every allocation is counted. The
// plugin `reference` is called, because what it computes with are ATen's own operations, which have meta versions.
//
// Meta tensors have addresses here, which tell tensors apart and must not be read.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace fvlm::device {
class Runtime;
}

namespace fvlm::ops {

// The device itself; in a dry run, for the meta device, the one that it stands for.
at::Device real_device(at::Device device);
// Whether a plugin for `device` is asked for tensors that have no content.
bool is_dry_run(at::Device device);

// Makes tensors on the meta device stand for those of `device`. One at a time, and no work on a GPU meanwhile: what
// needs its runtime is left out. [setup]
class DryRun {
 public:
  explicit DryRun(at::Device device);
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  int64_t live() const; // bytes
  int64_t peak() const; // since reset_peak()
  void reset_peak();

  // Forgets all parts; what was allocated before belongs to none.
  void begin_parts();
  // Names what was allocated since begin_parts() or the last end_part(), and begins the next part.
  void end_part(const std::string& name);
  // Bytes that each named part still holds.
  std::map<std::string, int64_t> live_parts() const;

 private:
  c10::Allocator* allocator_before_;
  device::Runtime* runtime_before_;
};

} // namespace fvlm::ops
