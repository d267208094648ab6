// The engine's host as plugins see it, with the number of threads and the order of pieces under the test's control.
#pragma once
#include <fvlm/abi.h>

#include <functional>
#include <memory>
#include <string>

namespace fvlm::check {

class TestHost {
 public:
  // The host with this many threads: made once, lives as long as the process, as the ABI promises. The last piece
  // first where `backwards`: which piece runs when must not matter.
  static TestHost& with_threads(int threads, bool backwards = false);

  // One that has so many threads as it says, and runs all pieces on the calling thread, one after the other.
  static TestHost& serial(int threads, bool backwards = false);

  // Of a serial host: called on the calling thread before each piece and once behind the last, with the number of
  // pieces done so far of this parallel_for. Empty: nothing is called.
  void between_pieces(std::function<void(int64_t done)> hook);

  // Calls the hook of between_pieces(). For callbacks of a plugin that does not use parallel_for.
  void run_between(int64_t done);

  // While this lives, the pieces of this host begin together and their threads are switched every few microseconds,
  // wherever they are: even on a single core they run through each other. Of hosts that are not serial.
  class Stirred {
   public:
    explicit Stirred(TestHost& host);
    ~Stirred();
    Stirred(const Stirred&) = delete;
    Stirred& operator=(const Stirred&) = delete;

   private:
    TestHost& host_;
  };

  const fvlm_host* abi() const;

  // What the plugin did wrong with its host since the last call of this, "" for nothing.
  std::string take_misuse();

  struct Pool;
  struct Block;

 private:
  TestHost(int threads, bool backwards, bool serial);
  static TestHost& made(int threads, bool backwards, bool serial);
  ~TestHost();
  Block* block_; // lives as long as the process
  std::unique_ptr<Pool> pool_;
};

// Installs the signal handler that Stirring needs: once, before a plugin is loaded that is not to change any.
void allow_stirring();

// While this lives, the calling thread gives its core away every few microseconds, wherever it is.
class Stirring {
 public:
  Stirring();
  ~Stirring();
  Stirring(const Stirring&) = delete;
  Stirring& operator=(const Stirring&) = delete;

 private:
  void* timer_ = nullptr;
  bool runs_ = false;
};

} // namespace fvlm::check
