// cpp_wrapper_plugin.cpp: a plugin as an author would write it, which throws in all places where the C++ wrapper has to
// catch.
#include <fvlm/fvlm.hpp>

#include <stdexcept>

namespace sdk = fvlm::sdk;

namespace {

class Gate : public sdk::Kernels {
 public:
  explicit Gate(const fvlm_instance_config& config) {
    if (config.device.id == 7) throw std::bad_alloc();
    if (config.device.id == 8) throw sdk::Failure(FVLM_ERROR_DEVICE, "no device %d", 8);
    if (config.device.id == 9) throw std::runtime_error("9 is odd");
  }

  static sdk::Support supports(const Query& query) {
    if (query.width == 13) throw std::runtime_error("13 is unlucky");
    if (!sdk::is_one_of<float, sdk::BFloat16>(query.dtype)) {
      return sdk::refuse("dtype %s not supported", sdk::name_of(query.dtype));
    }
    return sdk::accept(100, "plain loops");
  }

  void requirements(const Query& query, sdk::Requirements& requirements) const {
    sdk::Workspace space;
    lay_out(space, query);
    requirements.forward_workspace = space.used();
    requirements.deterministic_workspace = 640;
    requirements.save(sdk::float32, {query.rows, query.width});
  }

  void swiglu_forward(const fvlm_call& call, const Query& query, const fvlm_swiglu_forward& arguments) {
    sdk::Workspace space(call);
    const auto scratch = lay_out(space, query);
    sdk::dispatch<float, sdk::BFloat16>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const sdk::View<const T, 2> gate(arguments.gate, "gate"), up(arguments.up, "up");
      const sdk::View<T, 2> y(arguments.y, "y");
      sdk::parallel_for(call.host, y.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          if (row == 100) throw sdk::Failure(FVLM_ERROR_INTERNAL, "row %d", 100);
          scratch[static_cast<std::size_t>(row)] = static_cast<float>(row);
          for (std::int64_t i = 0; i < y.size(1); ++i) y(row, i) = T(gate(row, i) * up(row, i));
        }
      });
    });
  }

  void swiglu_backward(const fvlm_call&, const Query&, const fvlm_swiglu_backward&) { throw 42; }

 private:
  static sdk::Span<float> lay_out(sdk::Workspace& space, const Query& query) {
    space.take<char>(1);
    return space.take<float>(query.rows);
  }
};

template <int nesterov>
class Momentum : public sdk::Optimizer {
 public:
  static constexpr const char* algorithm = nesterov ? "nesterov" : "momentum";
  static constexpr fvlm_hyperparameter hyperparameters[] = {{"lr", 1e-3, 0, 1}, {"momentum", 0.9, 0, 1}};
  static sdk::Support supports(const Query&) { return sdk::accept(50, "yes"); }
  static sdk::States states(const Query& query) {
    if (query.elements == 13) throw sdk::Failure(FVLM_ERROR_INTERNAL, "13 is unlucky");
    return {{"m", query.state_dtype}};
  }
  void step(const fvlm_call&, const Query&, const Step&) {}
};

} // namespace

FVLM_PLUGIN("comfort", "1.2.3", Gate, Momentum<0>, Momentum<1>)
