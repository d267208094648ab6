#pragma once
// What c10d's ProcessGroupGloo.hpp names of Gloo, which LibTorch 2.11 exports. Objects of these classes are made and
// destroyed there; here they are only pointed to.
#include <chrono>
#include <memory>

namespace gloo {
namespace transport {

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

} // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
