// The engine's host as plugins see it, with the number of threads and the order of pieces under the test's control.
#pragma once
#include <fvlm/abi.h>

#include <functional>
#include <memory>
#include <string>

namespace fvlm::check {

class TestHost {
 public:
  // The host with this many threads, created once; it lives as long as the process, as the ABI promises. `backwards`
  // starts with the last piece: the order must not matter.
  static TestHost& with_threads(int threads, bool backwards = false);

  // A host that reports this many threads and runs all pieces on the calling thread, one after the other.
  static TestHost& serial(int threads, bool backwards = false);

  // Of a serial host: called on the calling thread before each piece and once behind the last, with the number of
  // pieces done so far of this parallel_for. Empty: nothing is called.
  void between_pieces(std::function<void(int64_t done)> hook);

  // Calls the hook of between_pieces() too, for callbacks of plugins that do not use parallel_for.
  void run_between(int64_t done);

  // While this lives, the pieces of this host start together and their threads yield every few microseconds, so that
  // they interleave even on a single core. Not for serial hosts.
  class Interleaved {
   public:
    explicit Interleaved(TestHost& host);
    ~Interleaved();
    Interleaved(const Interleaved&) = delete;
    Interleaved& operator=(const Interleaved&) = delete;

   private:
    TestHost& host_;
  };

  const fvlm_host* abi() const;

  // The plugin's first misuse of its host since the last call of this, "" for none.
  std::string take_misuse();

  struct Pool;
  struct Block;

 private:
  TestHost(int threads, bool backwards, bool serial);
  static TestHost& shared(int threads, bool backwards, bool serial);
  ~TestHost();
  Block* block_; // lives as long as the process
  std::unique_ptr<Pool> pool_;
};

// Installs the signal handler that FrequentYields needs. Called once, before a plugin is loaded, because handlers that
// change after that are reported as the plugin's.
void install_yield_handler();

// While this lives, a timer makes the calling thread yield 30 microseconds after it last did.
class FrequentYields {
 public:
  FrequentYields();
  ~FrequentYields();
  FrequentYields(const FrequentYields&) = delete;
  FrequentYields& operator=(const FrequentYields&) = delete;

 private:
  void* timer_ = nullptr;
  bool runs_ = false;
};

} // namespace fvlm::check
