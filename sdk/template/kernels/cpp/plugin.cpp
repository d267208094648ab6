// @NAME@: two of the small operations in plain C++: rmsnorm and swiglu. fvlm/kernels.h specifies each function.
// To add an operation, write the member function with its name in the table.
#include <fvlm/fvlm.hpp>

#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

// Rows of `width` contiguous elements.
template <class T, class Tensor>
View<T, 2> rows_of(Tensor* tensor, const char* name) {
  View<T, 2> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

class PlainKernels : public Kernels {
 public:
  explicit PlainKernels(const fvlm_instance_config& config) {
    if (config.device.type != FVLM_CPU) throw Failure(FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
  }

  // Called only for the operations below.
  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    if (query.gradient_dtype != float32 && query.gradient_dtype != query.dtype) {
      return refuse("gradients in %s not supported", name_of(query.gradient_dtype));
    }
    const auto unknown = query.options & ~(FVLM_WITH_BACKWARD | FVLM_WITH_RESIDUAL);
    if (unknown) return refuse("options %#x not supported", unknown);
    return accept(10, "plain loops"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    const bool backward = (query.options & FVLM_WITH_BACKWARD) != 0;
    if (query.op == FVLM_OP_RMSNORM && backward) requirements.save(float32, {query.rows}); // 1 / rms of each row
  }

  void rmsnorm_forward(const fvlm_call& call, const Query& query, const fvlm_norm_forward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      run_rmsnorm<T>(call, query, arguments);
    });
  }

  void rmsnorm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      if (query.gradient_dtype == float32) {
        run_rmsnorm_backward<T, float>(call, query, arguments);
      } else {
        run_rmsnorm_backward<T, T>(call, query, arguments);
      }
    });
  }

  void swiglu_forward(const fvlm_call& call, const Query& query, const fvlm_swiglu_forward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto gate = rows_of<const T>(arguments.gate, "gate"), up = rows_of<const T>(arguments.up, "up");
      const auto y = rows_of<T>(arguments.y, "y");
      parallel_for(call.host, query.rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t i = 0; i < query.width; ++i) {
            const float x = gate(row, i);
            y(row, i) = T(x / (1 + std::exp(-x)) * float(up(row, i)));
          }
        }
      });
    });
  }

  // d_gate and d_up may alias gate and up.
  void swiglu_backward(const fvlm_call& call, const Query& query, const fvlm_swiglu_backward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      const auto gate = rows_of<const T>(arguments.gate, "gate"), up = rows_of<const T>(arguments.up, "up"),
                 d_y = rows_of<const T>(arguments.d_y, "d_y");
      const auto d_gate = rows_of<T>(arguments.d_gate, "d_gate"), d_up = rows_of<T>(arguments.d_up, "d_up");
      parallel_for(call.host, query.rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          for (int64_t i = 0; i < query.width; ++i) {
            const float x = gate(row, i), u = up(row, i), d = d_y(row, i), sigmoid = 1 / (1 + std::exp(-x));
            d_gate(row, i) = T(d * u * sigmoid * (1 + x * (1 - sigmoid)));
            d_up(row, i) = T(d * x * sigmoid);
          }
        }
      });
    });
  }

 private:
  template <class T>
  static void run_rmsnorm(const fvlm_call& call, const Query& query, const fvlm_norm_forward& arguments) {
    const auto x = rows_of<const T>(arguments.x, "x");
    const View<const T, 1> weight(arguments.weight, "weight");
    const auto y = rows_of<T>(arguments.y, "y");
    View<const T, 2> residual;
    View<T, 2> sum;
    View<float, 1> inverse;
    if (arguments.residual) {
      residual = rows_of<const T>(arguments.residual, "residual");
      sum = rows_of<T>(arguments.sum, "sum");
    }
    if (arguments.saved[0]) inverse = View<float, 1>(arguments.saved[0], "saved[0]");

    parallel_for(call.host, query.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* s = x.row(row);
        if (sum) {
          for (int64_t i = 0; i < query.width; ++i) sum(row, i) = T(float(x(row, i)) + float(residual(row, i)));
          s = sum.row(row); // the rounded sum, which backward uses
        }
        float squares = 0;
        for (int64_t i = 0; i < query.width; ++i) squares += float(s[i]) * float(s[i]);
        const float scale = 1 / std::sqrt(squares / static_cast<float>(query.width) + query.epsilon);
        for (int64_t i = 0; i < query.width; ++i) y(row, i) = T(float(s[i]) * scale * float(weight(i)));
        if (inverse) inverse(row) = scale;
      }
    });
  }

  template <class T, class G>
  static void run_rmsnorm_backward(const fvlm_call& call, const Query& query, const fvlm_norm_backward& arguments) {
    const auto d_y = rows_of<const T>(arguments.d_y, "d_y"), s = rows_of<const T>(arguments.s, "s");
    const View<const T, 1> weight(arguments.weight, "weight");
    const View<const float, 1> inverse(arguments.saved[0], "saved[0]");
    const auto d_x = rows_of<T>(arguments.d_x, "d_x");
    View<const T, 2> d_sum;
    if (arguments.d_sum) d_sum = rows_of<const T>(arguments.d_sum, "d_sum");

    // The weight's gradient first: it reads d_y, which d_x may overwrite.
    if (arguments.d_weight) {
      const View<G, 1> d_weight(arguments.d_weight, "d_weight");
      const bool accumulate = arguments.accumulate != 0;
      parallel_for(call.host, query.width, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float sum = accumulate ? float(d_weight(i)) : 0;
          for (int64_t row = 0; row < query.rows; ++row) sum += float(d_y(row, i)) * float(s(row, i)) * inverse(row);
          d_weight(i) = G(sum);
        }
      });
    }
    parallel_for(call.host, query.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float product = 0;
        for (int64_t i = 0; i < query.width; ++i) product += float(d_y(row, i)) * float(weight(i)) * float(s(row, i));
        product *= inverse(row) * inverse(row) / static_cast<float>(query.width);
        for (int64_t i = 0; i < query.width; ++i) {
          const float through = (float(d_y(row, i)) * float(weight(i)) - product * float(s(row, i))) * inverse(row);
          d_x(row, i) = T(through + (d_sum ? float(d_sum(row, i)) : 0));
        }
      }
    });
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", PlainKernels)
