// The ways in which a trial can be run: same numbers asked for, other circumstances.
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
  far_rows,   // 2^30 elements apart: what counts them in 32 bits comes back to other memory. On a host, and bare
  misaligned, // contiguous, one element after an aligned address
  page_start, // the first byte is the first of a page, and the page before it is not there
  page_end    // the last byte is the last of a page, and the page behind it is not there
};

// Which struct of a call carries a wrong struct_size.
enum class Spoil { none, query, arguments, call, longer };

struct Variation {
  Placement placement = Placement::contiguous;
  Spoil spoil = Spoil::none;
  uint32_t spoiled_size = 0; // what struct_size is then
  uint32_t flags = 1;        // FVLM_DETERMINISTIC
  uint8_t poison = 0xFF;     // bytes of outputs and workspace before a call
  int alias = 0;             // 1: outputs lie in the memory of inputs where the header allows it; 2: of other ones
  bool error_sink = true;
  uint32_t error_capacity = 512;
  std::string workspace_cut;    // the call that gets one byte less than requirements() asked for
  bool despite_refusal = false; // calls although supports() or requirements() said no
  // Before each call comes one with other numbers at the same addresses: halved, or the same ones in another order.
  enum class Rehearsal { none, halved, reordered } rehearsal = Rehearsal::none;
  bool halved = false;   // inputs of floating point hold half of their numbers, so that other results come out
  bool races = false;    // what two pieces of one parallel_for write is noted; on a serial host
  bool recorded = false; // calls are recorded as CUDA graphs, and these are replayed
  bool bare = false;     // no guards are looked at, workspace and saved tensors are not touched: for timing
  bool sealed = false;   // what the plugin may not write cannot be written while it is called; host memory alone
  int repeat = 0;        // further calls of each function, timed
  void (*before_repeat)() = nullptr;
  void (*after_repeat)() = nullptr;
  std::function<void()> between;     // what happens before each call but prepare()
  ProcessWatch* watch = nullptr;     // notes what calls leave changed in the process
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
  unrecordable,
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

// What came of running a trial once.
struct Run {
  std::vector<Status> statuses;
  std::vector<std::pair<Violation, std::string>> violations;
  std::vector<std::pair<std::string, at::Tensor>> outputs; // contiguous copies
  std::vector<Timing> timings;
  int64_t workspace = 0; // bytes that requirements() asked for, the larger of forward and backward
  int64_t saved = 0;     // bytes of the saved tensors
  int64_t peak = 0;      // bare: bytes that became resident during the calls, tensors that the engine owns left out
  size_t nodes = 0;      // recorded: of the largest graph

  bool done() const; // every call was made and returned FVLM_OK
  // "forward returned 2 (unsupported): head_dim 80", "" when done
  std::string trouble() const;
  const at::Tensor* output(std::string_view name) const;
  std::optional<std::string> violation(Violation kind) const; // the first
};

const char* status_name(int32_t status);

} // namespace fvlm::check
