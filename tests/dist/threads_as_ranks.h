// Several ranks in one process, a thread each, which meet over TCP as processes do.
#pragma once
#include "base/descriptor.h"
#include "dist/ranks.h"

#include <arpa/inet.h>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace fvlm::test {

inline uint16_t free_port() {
  const Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(probe.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::runtime_error("no port is free");
  return ntohs(address.sin_port);
}

// Until all of them return. Throws what the first one that failed threw.
inline void as_ranks(int64_t count, const std::function<void(const dist::Ranks& ranks)>& work,
                     std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  // PyTorch's flight recorder is one for the whole process, and writes to its map of groups without a lock.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const uint16_t port = free_port();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      try {
        dist::Launch launch;
        launch.rank = launch.local_rank = rank;
        launch.ranks = launch.local_ranks = count;
        launch.host = "127.0.0.1";
        launch.port = port;
        work(*dist::Ranks::join(launch, at::kCPU, timeout));
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

} // namespace fvlm::test
