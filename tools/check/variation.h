// The circumstances in which a trial can be run; its expected numbers stay the same.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct fvlm_instance;

namespace fvlm::check {

class ProcessWatch;
class TestHost;

enum class Placement {
  contiguous,
  wide_rows,  // rows lie further apart than their width, by multiples of 16 elements, in each tensor by others
  wide_heads, // the heads of a row as well
  head_major, // a head's rows lie together, one head behind the other
  odd_rows,   // by odd numbers of elements, heads too: no vector load is aligned
  far_rows,   // 2^30 elements apart, so that 32-bit offsets overflow. Host memory and unguarded runs only
  misaligned, // contiguous, one element after an aligned address
  page_start, // the first byte is the first of a page, and the page before it is not there
  page_end    // the last byte is the last of a page, and the page behind it is not there
};

// Which struct of a call has a wrong struct_size; `longer`: all are larger than the plugin knows.
enum class SizeFault { none, query, arguments, call, longer };

struct Variation {
  Placement placement = Placement::contiguous;
  SizeFault size_fault = SizeFault::none;
  uint32_t faulty_size = 0; // the wrong struct_size
  uint32_t flags = 1;       // FVLM_DETERMINISTIC
  uint8_t poison = 0xFF;    // bytes of outputs and workspace before a call
  int alias = 0;            // 1: outputs alias inputs where the header allows it; 2: a second choice of inputs
  bool error_sink = true;
  uint32_t error_capacity = 512;
  std::string workspace_cut;   // the call that gets one byte less than requirements() requested
  bool ignore_refusal = false; // calls although supports() or requirements() refused
  // A prior call with other inputs at the same addresses precedes each call: halved, or in another order.
  enum class PriorCall { none, halved, reordered } prior_call = PriorCall::none;
  bool halved = false;          // floating-point inputs are halved, so that results differ
  bool record_races = false;    // detects bytes that two pieces of one parallel_for write; on a serial host
  bool captured = false;        // calls are captured as CUDA graphs, which are replayed
  bool unguarded = false;       // for timing: guards are not checked, workspace and saved tensors not touched
  bool write_protected = false; // inputs and structs are read-only during the call; host memory only
  int repeat = 0;               // further calls of each function, timed
  void (*before_repeat)() = nullptr;
  void (*after_repeat)() = nullptr;
  std::function<void()> between; // runs before each call except prepare()
  // Is given requirements() of the trial's query, to call it again; the run ends behind it.
  std::function<void(const std::function<void()>& requirements)> ask_again;
  ProcessWatch* watch = nullptr;     // records changes of the process's state by calls
  TestHost* host = nullptr;          // NULL: the context's
  fvlm_instance* instance = nullptr; // NULL: the context's
};

enum class Violation {
  past_end,
  past_workspace,
  input_changed,
  wrote_on_refusal,
  threw,
  host_misused,
  not_capturable,
  raced
};

struct Status {
  std::string call; // "forward"
  int32_t value = 0;
  std::string error;      // what the plugin wrote into the sink
  uint64_t workspace = 0; // bytes it was given
};

struct Timing {
  std::string call;
  double seconds = 0; // the fastest of `repeat` calls
  double cpu = 0;     // CPU time, all threads, the least of them
};

// The result of running a trial once.
struct Run {
  std::vector<Status> statuses;
  std::vector<std::pair<Violation, std::string>> violations;
  std::vector<std::pair<std::string, at::Tensor>> outputs; // contiguous copies
  std::vector<Timing> timings;
  int64_t workspace = 0; // bytes that requirements() requested, the larger of forward and backward
  int64_t saved = 0;     // bytes of the saved tensors
  int64_t peak = 0;      // unguarded: bytes that became resident during the calls, without the engine's tensors
  size_t nodes = 0;      // captured: of the largest graph

  bool done() const; // every call was made and returned FVLM_OK
  // "forward returned 2 (unsupported): head_dim 80", "" when done
  std::string failure() const;
  const at::Tensor* output(std::string_view name) const;
  std::optional<std::string> violation(Violation kind) const; // the first
};

const char* status_name(int32_t status);

} // namespace fvlm::check
