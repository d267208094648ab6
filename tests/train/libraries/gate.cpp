// A plugin for tests: SwiGLU in plain loops. The environment's GATE_FAULT says what goes wrong in which call of its
// forward or backward pass: "backward fail 18" ends that one with a status. Without it nothing does.
#include <fvlm/fvlm.hpp>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>

namespace sdk = fvlm::sdk;

namespace {

struct Fault {
  std::string pass, what;
  int call = 0;
};

Fault fault_of_environment() {
  Fault fault;
  const char* text = std::getenv("GATE_FAULT");
  std::istringstream(text ? text : "") >> fault.pass >> fault.what >> fault.call;
  return fault;
}

int use_up_the_stack(int depth) {
  volatile char room[4096];
  room[0] = 1;
  return depth == 0 ? 0 : use_up_the_stack(depth - 1) + room[0];
}

class Gate : public sdk::Kernels {
 public:
  explicit Gate(const fvlm_instance_config&) {}

  static sdk::Support supports(const Query& query) {
    if (!sdk::is_one_of<float>(query.dtype)) return sdk::refuse("dtype %s not supported", sdk::name_of(query.dtype));
    return sdk::accept(10, "plain loops");
  }

  void requirements(const Query&, sdk::Requirements& wanted) const {
    if (fault_.what == "workspace") wanted.forward_workspace = std::uint64_t{1} << 45;
    constexpr std::int64_t size = std::int64_t{1} << 40;
    if (fault_.what == "saved") wanted.save({FVLM_FLOAT, 32, 1}, {size, size});
  }

  void swiglu_forward(const fvlm_call&, const Query& query, const fvlm_swiglu_forward& arguments) {
    if (fault_.pass == "forward") called(query);
    const sdk::View<const float, 2> gate(arguments.gate, "gate"), up(arguments.up, "up");
    const sdk::View<float, 2> y(arguments.y, "y");
    for (std::int64_t row = 0; row < y.size(0); ++row)
      for (std::int64_t i = 0; i < y.size(1); ++i) y(row, i) = gate(row, i) * share(gate(row, i)) * up(row, i);
  }

  void swiglu_backward(const fvlm_call&, const Query& query, const fvlm_swiglu_backward& arguments) {
    if (fault_.pass == "backward") called(query);
    const sdk::View<const float, 2> gate(arguments.gate, "gate"), up(arguments.up, "up"), d_y(arguments.d_y, "d_y");
    const sdk::View<float, 2> d_gate(arguments.d_gate, "d_gate"), d_up(arguments.d_up, "d_up");
    for (std::int64_t row = 0; row < d_y.size(0); ++row)
      for (std::int64_t i = 0; i < d_y.size(1); ++i) {
        const float x = gate(row, i), opened = share(x), d = d_y(row, i);
        const float d_x = d * up(row, i) * opened * (1 + x * (1 - opened));
        d_up(row, i) = d * x * opened;
        d_gate(row, i) = d_x;
      }
  }

 private:
  static float share(float x) { return 1 / (1 + std::exp(-x)); }

  void called(const Query& query) {
    if (++calls_ != fault_.call) return;
    const int width = static_cast<int>(query.width);
    if (fault_.what == "fail") throw sdk::Failure(FVLM_ERROR_INTERNAL, "call %d of width %d went wrong", calls_, width);
    if (fault_.what == "unsupported") throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "call %d is not for it", calls_);
    if (fault_.what == "exit") std::exit(0);
    if (fault_.what == "quick_exit") std::quick_exit(0);
    if (fault_.what == "abort") std::abort();
    if (fault_.what == "overflow") std::exit(use_up_the_stack(1 << 30));
    if (fault_.what == "crash") std::raise(SIGSEGV);
  }

  const Fault fault_ = fault_of_environment();
  int calls_ = 0;
};

} // namespace

FVLM_PLUGIN("kernels-gate", "1.0", Gate)
