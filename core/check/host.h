// A host as plugins see it, with the number of threads and the order of pieces in our hands.
#pragma once
#include <fvlm/abi.h>

#include <memory>
#include <string>

namespace fvlm::check {

class TestHost {
 public:
  // The host with this many threads: made once, lives as long as the process, as the ABI promises. The last piece
  // first where `backwards`: which piece runs when must not matter.
  static TestHost& with_threads(int threads, bool backwards = false);

  const fvlm_host* abi() const;

  // What the plugin did wrong with its host since the last call of this, "" for nothing.
  std::string take_misuse();

  struct Pool;
  struct Block;

 private:
  TestHost(int threads, bool backwards);
  ~TestHost();
  std::unique_ptr<Block> block_;
  std::unique_ptr<Pool> pool_;
};

} // namespace fvlm::check
