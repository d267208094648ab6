// @NAME@: int8 with one scale per row, in plain C++. fvlm/quantizer.h specifies each function and the int8
// scheme. For a scheme of your own, change `scheme` here and the kind in plugin.toml, then the packed form.
#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;
using std::int8_t;

template <class T>
float scale_of(const T* weight, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(float(weight[i])));
  return largest / 127;
}

float code_of(float weight, float scale) {
  return scale > 0 ? std::clamp(std::rint(weight / scale), -127.0F, 127.0F) : 0; // rint rounds half to even
}

// Rows of contiguous elements.
template <class T, class Tensor>
View<T, 2> rows_of(Tensor* tensor, const char* name) {
  View<T, 2> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

// The packed form, as requirements() declares it.
struct Packed {
  View<const int8_t, 2> codes;
  View<const float, 1> scales;

  template <class Arguments>
  explicit Packed(const Arguments& arguments)
      : codes(arguments.packed[0], "codes"), scales(arguments.packed[1], "scales") {}
  float operator()(int64_t row, int64_t col) const { return float(codes(row, col)) * scales(row); }
};

// Runs body(element, begin, end) over pieces of [0, count), with the query's element type.
template <class Body>
void run(const fvlm_call& call, fvlm_dtype dtype, int64_t count, const Body& body) {
  dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    parallel_for(call.host, count, 1, [&](int64_t begin, int64_t end) { body(element, begin, end); });
  });
}

class PlainInt8 : public Quantizer {
 public:
  static constexpr const char* scheme = "int8";
  static constexpr int bits = 8;

  explicit PlainInt8(const fvlm_instance_config& config) {
    if (config.device.type != FVLM_CPU) throw Failure(FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
  }

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    return accept(10, "plain loops"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    requirements.save(int8, {query.rows, query.cols});
    requirements.save(float32, {query.rows});
  }

  void pack(const fvlm_call& call, const Query& query, const Pack& arguments) {
    require(supports(query));
    const View<int8_t, 2> codes(arguments.packed[0], "codes");
    const View<float, 1> scales(arguments.packed[1], "scales");
    run(call, query.dtype, query.rows, [&](auto element, int64_t begin, int64_t end) {
      const auto weight = rows_of<const typename decltype(element)::type>(arguments.weight, "weight");
      for (int64_t row = begin; row < end; ++row) {
        const float scale = scale_of(weight.row(row), query.cols);
        for (int64_t i = 0; i < query.cols; ++i)
          codes(row, i) = static_cast<int8_t>(code_of(float(weight(row, i)), scale));
        scales(row) = scale;
      }
    });
  }

  void unpack(const fvlm_call& call, const Query& query, const Unpack& arguments) {
    require(supports(query));
    const Packed packed(arguments);
    run(call, query.dtype, query.rows, [&](auto element, int64_t begin, int64_t end) {
      using T = typename decltype(element)::type;
      const auto weight = rows_of<T>(arguments.weight, "weight");
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t i = 0; i < query.cols; ++i) weight(row, i) = T(packed(row, i));
      }
    });
  }

  void linear(const fvlm_call& call, const Query& query, const Linear& arguments) {
    require(supports(query));
    const Packed packed(arguments);
    run(call, query.dtype, arguments.x->shape[0], [&](auto element, int64_t begin, int64_t end) {
      using T = typename decltype(element)::type;
      const auto x = rows_of<const T>(arguments.x, "x");
      const auto y = rows_of<T>(arguments.y, "y");
      View<const T, 1> bias;
      if (arguments.bias) bias = View<const T, 1>(arguments.bias, "bias");
      for (int64_t token = begin; token < end; ++token) {
        for (int64_t row = 0; row < query.rows; ++row) {
          float sum = bias ? float(bias(row)) : 0;
          for (int64_t i = 0; i < query.cols; ++i) sum += float(x(token, i)) * packed(row, i);
          y(token, row) = T(sum);
        }
      }
    });
  }

  void linear_gradient(const fvlm_call& call, const Query& query, const LinearGradient& arguments) {
    require(supports(query));
    const Packed packed(arguments);
    run(call, query.dtype, arguments.d_y->shape[0], [&](auto element, int64_t begin, int64_t end) {
      using T = typename decltype(element)::type;
      const auto d_y = rows_of<const T>(arguments.d_y, "d_y");
      const auto d_x = rows_of<T>(arguments.d_x, "d_x");
      for (int64_t token = begin; token < end; ++token) {
        for (int64_t i = 0; i < query.cols; ++i) {
          float sum = 0;
          for (int64_t row = 0; row < query.rows; ++row) sum += float(d_y(token, row)) * packed(row, i);
          d_x(token, i) = T(sum);
        }
      }
    });
  }

  void fake_quantize_forward(const fvlm_call& call, const Query& query, const FakeForward& arguments) {
    require(supports(query));
    run(call, query.dtype, query.rows, [&](auto element, int64_t begin, int64_t end) {
      using T = typename decltype(element)::type;
      const auto weight = rows_of<const T>(arguments.weight, "weight");
      const auto out = rows_of<T>(arguments.out, "out");
      for (int64_t row = begin; row < end; ++row) {
        const float scale = scale_of(weight.row(row), query.cols);
        for (int64_t i = 0; i < query.cols; ++i) out(row, i) = T(code_of(float(weight(row, i)), scale) * scale);
      }
    });
  }

  // The largest weight sets the scale, so nothing is clipped and every gradient passes.
  void fake_quantize_backward(const fvlm_call& call, const Query& query, const FakeBackward& arguments) {
    require(supports(query));
    run(call, query.dtype, query.rows, [&](auto element, int64_t begin, int64_t end) {
      using T = typename decltype(element)::type;
      const auto d_out = rows_of<const T>(arguments.d_out, "d_out");
      const auto d_weight = rows_of<T>(arguments.d_weight, "d_weight");
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t i = 0; i < query.cols; ++i) d_weight(row, i) = d_out(row, i);
      }
    });
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", PlainInt8)
