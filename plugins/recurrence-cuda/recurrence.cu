// recurrence.cu: the plugin's entry points: which queries it takes, and the checks of each call's operands.
#include "common/cuda_device.h"
#include "common/cuda_operands.h"
#include "short_convolution.h"

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

class RecurrenceCuda : public Kernels {
 public:
  explicit RecurrenceCuda(const fvlm_instance_config& config) : multiprocessors_(multiprocessor_count(config.device)) {}

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // Also checked by every call.
  static Support fits(const Query& query) {
    constexpr std::uint32_t known_options = FVLM_WITH_BACKWARD | FVLM_WITH_BIAS | FVLM_WITH_STATES;
    if (!is_one_of<float, BFloat16, Half>(query.dtype))
      return refuse("dtype %s is not supported", name_of(query.dtype));
    if ((query.options & FVLM_WITH_BACKWARD) && query.gradient_dtype != query.dtype && query.gradient_dtype != float32)
      return refuse("gradients in %s are not supported", name_of(query.gradient_dtype));
    if (query.options & ~known_options) return refuse("options %#x are not supported", query.options);
    if ((query.options & FVLM_WITH_BACKWARD) && (query.options & FVLM_WITH_STATES))
      return refuse("a backward through states is not supported");
    if (query.rows < 0 || query.rows > INT32_MAX || query.width < 0 || query.width > GradientSums::max_width)
      return refuse("%lld rows of width %lld are not supported", static_cast<long long>(query.rows),
                    static_cast<long long>(query.width));
    if (query.segments < 0 || query.segments >= INT32_MAX)
      return refuse("%lld segments are not supported", static_cast<long long>(query.segments));
    if (query.taps < 1 || query.taps > max_taps)
      return refuse("%d taps are not supported: expected 1 to %d", query.taps, max_taps);
    return accept(300, "rows are read about once, 16 bytes per thread");
  }

  void requirements(const Query& query, Requirements& requirements) const {
    require(fits(query));
    if (!(query.options & FVLM_WITH_BACKWARD)) return;
    Workspace workspace;
    take_parts(workspace, query);
    requirements.backward_workspace = workspace.used();
  }

  void short_convolution_forward(const fvlm_call& call, const Query& query, const fvlm_convolution_forward& a) const {
    require(fits(query));
    Operands operands(query);
    ShortConvolution p = convolution_of(operands, query, a);
    p.y = operands.rows(a.y, "y");
    if (query.options & FVLM_WITH_STATES) {
      p.slots = operands.integers(a.slots, query.segments, "slots");
      p.starts = operands.integers(a.starts, query.segments, "starts");
      p.states = states_of(operands, query, a.states);
    }
    plugins::short_convolution_forward(on(call), operands.shape(), p);
  }

  void short_convolution_backward(const fvlm_call& call, const Query& query, const fvlm_convolution_backward& a) const {
    require(fits(query));
    Operands operands(query);
    const ShortConvolution p = convolution_of(operands, query, a);
    ShortConvolutionGradients gradients{};
    gradients.d_y = operands.rows(a.d_y, "d_y");
    gradients.d_x = operands.rows(a.d_x, "d_x");
    gradients.d_weight = operands.gradient(a.d_weight, {query.width, query.taps}, "d_weight");
    gradients.d_bias = operands.gradient(a.d_bias, "d_bias");
    gradients.type = query.gradient_dtype;
    gradients.accumulate = a.accumulate != 0;
    if (gradients.d_weight || gradients.d_bias) {
      Workspace workspace(call);
      gradients.parts = take_parts(workspace, query);
    }
    plugins::short_convolution_backward(on(call), operands.shape(), p, gradients);
  }

 private:
  Device on(const fvlm_call& call) const { return {stream_of(call), multiprocessors_}; }

  float* take_parts(Workspace& workspace, const Query& query) const {
    const int64_t parts = max_convolution_parts({nullptr, multiprocessors_}, query.rows, query.width);
    return workspace.take<float>(parts * (query.taps + 1) * query.width).data();
  }

  // What forward and backward read alike.
  template <class Arguments>
  static ShortConvolution convolution_of(Operands& operands, const Query& query, const Arguments& a) {
    ShortConvolution p{};
    p.x = operands.rows(a.x, "x");
    p.weight = operands.parameter(a.weight, {query.width, query.taps}, "weight");
    if (query.options & FVLM_WITH_BIAS) p.bias = operands.parameter(a.bias, "bias");
    p.cu_seqlens = operands.integers(a.cu_seqlens, query.segments + 1, "cu_seqlens");
    p.segments = static_cast<int>(query.segments);
    p.taps = query.taps;
    return p;
  }

  static ConvolutionStates states_of(Operands& operands, const Query& query, const fvlm_tensor* states) {
    const char* const name = "states";
    if (!states) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
    if (states->dtype != query.dtype || states->ndim != 3 || states->shape[1] != query.taps - 1 ||
        states->shape[2] != query.width || (query.width > 1 && states->strides[2] != 1))
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [slots, %d, %lld] with contiguous rows", name,
                    name_of(query.dtype), query.taps - 1, static_cast<long long>(query.width));
    operands.check_alignment(states->data, states->strides[0]);
    operands.check_alignment(states->data, states->strides[1]);
    return {states->data, states->strides[0], states->strides[1]};
  }

  int multiprocessors_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("recurrence-cuda", "0.1.0", fvlm::plugins::RecurrenceCuda)
