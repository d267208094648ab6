// A plugin for tests: SwiGLU in plain loops. Call FAIL_AT of its backward pass fails; 0: none does.
#include <fvlm/fvlm.hpp>

#include <cmath>

namespace sdk = fvlm::sdk;

namespace {

class Gate : public sdk::Kernels {
 public:
  explicit Gate(const fvlm_instance_config&) {}

  static sdk::Support supports(const Query& query) {
    if (!sdk::is_one_of<float>(query.dtype)) return sdk::refuse("dtype %s not supported", sdk::name_of(query.dtype));
    return sdk::accept(10, "plain loops");
  }

  void swiglu_forward(const fvlm_call&, const Query&, const fvlm_swiglu_forward& arguments) {
    const sdk::View<const float, 2> gate(arguments.gate, "gate"), up(arguments.up, "up");
    const sdk::View<float, 2> y(arguments.y, "y");
    for (std::int64_t row = 0; row < y.size(0); ++row)
      for (std::int64_t i = 0; i < y.size(1); ++i) y(row, i) = gate(row, i) * share(gate(row, i)) * up(row, i);
  }

  void swiglu_backward(const fvlm_call&, const Query& query, const fvlm_swiglu_backward& arguments) {
    if (++calls_ == FAIL_AT)
      throw sdk::Failure(FVLM_ERROR_INTERNAL, "call %d of width %d went wrong", FAIL_AT, static_cast<int>(query.width));
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
  int calls_ = 0;
};

} // namespace

FVLM_PLUGIN("kernels-gate", "1.0", Gate)
