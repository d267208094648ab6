// Device memory of several processes of one host: each opens the others', copy engines move bytes between them without
// any multiprocessor, and streams signal each other. Of a GPU: device::Runtime::peer_access().
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace fvlm::device {

class PeerAccess {
 public:
  PeerAccess() = default;
  virtual ~PeerAccess() = default;
  PeerAccess(const PeerAccess&) = delete;
  PeerAccess& operator=(const PeerAccess&) = delete;

  // What another process opens this memory by, which lives on. Throws std::exception where it cannot be shared.
  virtual std::string export_memory(void* data) = 0;
  // That memory here, until the pointer's last copy goes. Throws std::exception where this device cannot reach it.
  virtual std::shared_ptr<std::byte> open_memory(const std::string& exported) = 0;
  // Lets streams signal by memory of the host, until the pointer goes. Throws std::exception where they cannot.
  virtual std::shared_ptr<void> map_host(void* data, size_t bytes) = 0;

  // Both enqueue on a cudaStream_t, and CUDA graphs capture them.
  virtual void copy(void* stream, void* to, const void* from, size_t bytes) = 0;
  // Behind all work before it: sets `signals` to 1, waits until each of `awaited` is 1, and sets those to 0.
  virtual void signal_and_wait(void* stream, std::span<uint32_t* const> signals,
                               std::span<uint32_t* const> awaited) = 0;
};

} // namespace fvlm::device
