// @NAME@: attention in plain C++, one row and one head at a time, on the engine's CPU threads. Correct, short and slow:
// a starting point. fvlm/attention.h specifies each function.
#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <cmath>

namespace {

using namespace fvlm::sdk;
using std::int64_t;

constexpr int max_head_dim = 256; // sums are kept in float32, whatever the dtype of the tensors

struct Range {
  int64_t begin, end;
};

// Which query rows attend to which key rows.
struct Segments {
  View<const std::int32_t, 1> cu_q, cu_kv;
  bool causal;

  // The key rows that a query row attends to; none for padding.
  Range keys_of(int64_t row) const {
    for (int64_t s = 0; s + 1 < cu_q.size(0); ++s) {
      if (row >= cu_q(s + 1)) continue;
      const int64_t begin = cu_kv(s);
      int64_t end = cu_kv(s + 1);
      if (causal) end -= cu_q(s + 1) - 1 - row; // the last query attends to the last key
      return {begin, std::max(begin, end)};
    }
    return {0, 0};
  }

  // The query rows that attend to a key row; none for padding.
  Range queries_of(int64_t row) const {
    for (int64_t s = 0; s + 1 < cu_kv.size(0); ++s) {
      if (row >= cu_kv(s + 1)) continue;
      const int64_t begin = cu_q(s), end = cu_q(s + 1);
      return {causal ? std::max(begin, end - (cu_kv(s + 1) - row)) : begin, end};
    }
    return {0, 0};
  }
};

// Rows of head_dim contiguous elements.
template <class T>
View<T, 3> heads(std::conditional_t<std::is_const_v<T>, const fvlm_tensor*, fvlm_tensor*> tensor, const char* name) {
  View<T, 3> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

template <class T>
float dot(const T* a, const T* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += float(a[i]) * float(b[i]);
  return sum;
}

template <class T>
void add_scaled(float* sum, float factor, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += factor * float(values[i]);
}

template <class T>
void store(T* to, const float* sum, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = T(sum[i] * factor);
}

class PlainAttention : public Attention {
 public:
  explicit PlainAttention(const fvlm_instance_config& config) {
    if (config.device.type != FVLM_CPU) throw Failure(FVLM_ERROR_UNSUPPORTED, "runs on the CPU only");
  }

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    if (query.rotary_dim != 0) return refuse("rotary_dim %d not supported", query.rotary_dim);
    if (query.guests || query.queries_alone)
      return refuse("extra queries and dq only (guests, queries_alone) not supported");
    if (query.head_dim > max_head_dim) return refuse("head_dim %d is more than %d", query.head_dim, max_head_dim);
    if (query.heads_kv < 1 || query.heads_q % query.heads_kv != 0) {
      return refuse("%d query heads are no multiple of %d key heads", query.heads_q, query.heads_kv);
    }
    return accept(10, "plain loops"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    if (query.needs_backward) requirements.save(float32, {query.tokens_q, query.heads_q}); // logsumexp
    Workspace space;
    space.take<float>(query.tokens_q * query.heads_q); // delta
    requirements.backward_workspace = space.used();
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      run_forward<T>(call, query, arguments);
    });
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& arguments) {
    require(supports(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      run_backward<T>(call, query, arguments);
    });
  }

 private:
  template <class T>
  static void run_forward(const fvlm_call& call, const Query& query, const Forward& arguments) {
    const auto q = heads<const T>(arguments.q, "q"), k = heads<const T>(arguments.k, "k"),
               v = heads<const T>(arguments.v, "v");
    const auto out = heads<T>(arguments.out, "out");
    View<float, 2> logsumexp;
    if (arguments.saved[0]) logsumexp = View<float, 2>(arguments.saved[0], "saved[0]");
    const Segments segments = segments_of(query, arguments);
    const int64_t dim = query.head_dim, group = query.heads_q / query.heads_kv;

    parallel_for(call.host, query.tokens_q * query.heads_q, 4, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / query.heads_q, head = item % query.heads_q;
        const Range keys = segments.keys_of(row);
        const T* q_row = &q(row, head, 0);
        float largest = -INFINITY, sum = 0, mean[max_head_dim] = {};
        const bool seen = keys.begin < keys.end; // else the output is 0
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          largest = std::max(largest, query.scale * dot(q_row, &k(j, head / group, 0), dim));
        }
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          const float p = std::exp(query.scale * dot(q_row, &k(j, head / group, 0), dim) - largest);
          sum += p;
          add_scaled(mean, p, &v(j, head / group, 0), dim);
        }
        store(&out(row, head, 0), mean, seen ? 1 / sum : 0, dim);
        if (logsumexp && seen) logsumexp(row, head) = largest + std::log(sum);
      }
    });
  }

  template <class T>
  static void run_backward(const fvlm_call& call, const Query& query, const Backward& arguments) {
    const auto q = heads<const T>(arguments.q, "q"), k = heads<const T>(arguments.k, "k"),
               v = heads<const T>(arguments.v, "v"), out = heads<const T>(arguments.out, "out"),
               d_out = heads<const T>(arguments.d_out, "d_out");
    const auto d_q = heads<T>(arguments.d_q, "d_q"), d_k = heads<T>(arguments.d_k, "d_k"),
               d_v = heads<T>(arguments.d_v, "d_v");
    const View<const float, 2> logsumexp(arguments.saved[0], "saved[0]");
    const Segments segments = segments_of(query, arguments);
    const int64_t dim = query.head_dim, group = query.heads_q / query.heads_kv;
    Workspace space(call);
    const auto delta = space.take<float>(query.tokens_q * query.heads_q); // out . d_out of each row

    parallel_for(call.host, query.tokens_q * query.heads_q, 4, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / query.heads_q, head = item % query.heads_q;
        const Range keys = segments.keys_of(row);
        const T *q_row = &q(row, head, 0), *d_row = &d_out(row, head, 0);
        float sum[max_head_dim] = {};
        if (keys.begin < keys.end) delta[item] = dot(&out(row, head, 0), d_row, dim);
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          const T* k_row = &k(j, head / group, 0);
          const float p = std::exp(query.scale * dot(q_row, k_row, dim) - logsumexp(row, head));
          add_scaled(sum, p * (dot(d_row, &v(j, head / group, 0), dim) - delta[item]), k_row, dim);
        }
        store(&d_q(row, head, 0), sum, query.scale, dim);
      }
    });

    // Each key row sums over the queries that attend to it, so no two tasks write the same element.
    parallel_for(call.host, query.tokens_kv * query.heads_kv, 4, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / query.heads_kv, head = item % query.heads_kv;
        const Range queries = segments.queries_of(row);
        const T *k_row = &k(row, head, 0), *v_row = &v(row, head, 0);
        float sum_k[max_head_dim] = {}, sum_v[max_head_dim] = {};
        for (int64_t i = queries.begin; i < queries.end; ++i) {
          for (int64_t h = head * group; h < (head + 1) * group; ++h) {
            const T *q_row = &q(i, h, 0), *d_row = &d_out(i, h, 0);
            const float p = std::exp(query.scale * dot(q_row, k_row, dim) - logsumexp(i, h));
            add_scaled(sum_v, p, d_row, dim);
            add_scaled(sum_k, p * (dot(d_row, v_row, dim) - delta[i * query.heads_q + h]), q_row, dim);
          }
        }
        store(&d_k(row, head, 0), sum_k, query.scale, dim);
        store(&d_v(row, head, 0), sum_v, 1, dim);
      }
    });
  }

  template <class Arguments>
  static Segments segments_of(const Query& query, const Arguments& arguments) {
    return {View<const std::int32_t, 1>(arguments.cu_seqlens_q, "cu_seqlens_q"),
            View<const std::int32_t, 1>(arguments.cu_seqlens_kv, "cu_seqlens_kv"), query.causal != 0};
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", PlainAttention)
