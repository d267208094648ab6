#include "linear_support.h"

#include "linear_extended.h"
#include "linear_fp8.h"

#include <algorithm>

namespace fvlm::plugins {

using namespace fvlm::sdk;

// Options that this plugin knows; queries with others are refused.
static constexpr std::uint32_t known_options =
    FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL | FVLM_WITH_BIAS | FVLM_WITH_GELU | FVLM_WITH_COLUMN_SUMS |
    FVLM_COMPENSATED | FVLM_WITH_NORM | FVLM_WITH_SWIGLU | FVLM_STRIDED_WEIGHT | FVLM_BOTH_GRADIENTS | FVLM_WITH_FP8 |
    FVLM_SWIGLU_INPUT | FVLM_WITH_OUTPUT | FVLM_FP8_PAIRS | gelu_forms;

Support fits(const fvlm_kernels_query& query) {
  if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s is not supported", name_of(query.dtype));
  if (has_backward(query) && query.gradient_dtype != query.dtype && query.gradient_dtype != float32)
    return refuse("gradients in %s are not supported", name_of(query.gradient_dtype));
  if (query.options & ~known_options) return refuse("options %#x are not supported", query.options);
  if ((query.options & FVLM_WITH_GELU) && (query.options & FVLM_WITH_RESIDUAL))
    return refuse("GELU together with a residual is not supported");
  if ((query.options & gelu_forms) == gelu_forms) return refuse("quick_gelu and gelu_tanh are mutually exclusive");
  if (keeps_compensation(query) && (query.dtype == float32 || !has_residual(query)))
    return refuse("compensation is supported for 16-bit dtypes with a residual only");
  if (query.rows < 0 || query.width < 1 || query.inner < 1 ||
      std::max({query.rows, query.width, query.inner}) > INT32_MAX)
    return refuse("%lld rows of %lld -> %lld are not supported", static_cast<long long>(query.rows),
                  static_cast<long long>(query.inner), static_cast<long long>(query.width));
  if (Support no = fits_both_gradients(query); no.score == 0) return no;
  if ((query.options & FVLM_WITH_OUTPUT) && !(query.options & FVLM_SWIGLU_INPUT))
    return refuse("the input of a linear along with its gradient is supported after SwiGLU alone");
  if (is_extended(query)) return fits_extended(query, has_fused_gemms(query.device));
  if (is_fp8(query)) return fits_fp8(query, has_fused_gemms(query.device));
  return accept(200, "cuBLASLt %zu", cublasLtGetVersion());
}

void log_timing(const fvlm_call& call, const fvlm_kernels_query& query, const char* what, int64_t rows,
                const char* report) {
  log(call.host, FVLM_LOG_DEBUG, "linear %lld x %lld -> %lld, %s, timed on %lld rows: %s",
      static_cast<long long>(query.rows), static_cast<long long>(query.inner), static_cast<long long>(query.width),
      what, static_cast<long long>(rows), report);
}

} // namespace fvlm::plugins
