// @NAME@: attention in plain CUDA, one thread per row and head. Correct, short and slow: a starting point.
// fvlm/attention.h specifies each function.
#include <fvlm/cuda.hpp>

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
  __device__ Range keys_of(int64_t row) const {
    for (int64_t s = 0; s + 1 < cu_q.size(0); ++s) {
      if (row >= cu_q(s + 1)) continue;
      const int64_t begin = cu_kv(s);
      int64_t end = cu_kv(s + 1);
      if (causal) end -= cu_q(s + 1) - 1 - row; // the last query attends to the last key
      return {begin, end > begin ? end : begin};
    }
    return {0, 0};
  }

  // The query rows that attend to a key row; none for padding.
  __device__ Range queries_of(int64_t row) const {
    for (int64_t s = 0; s + 1 < cu_kv.size(0); ++s) {
      if (row >= cu_kv(s + 1)) continue;
      const int64_t begin = cu_q(s), end = cu_q(s + 1);
      const int64_t first = end - (cu_kv(s + 1) - row);
      return {causal && first > begin ? first : begin, end};
    }
    return {0, 0};
  }
};

// Kernel arguments, passed by value: pointers into device memory, with shapes and strides.
template <class T>
struct Work {
  View<const T, 3> q, k, v, out_read, d_out;
  View<T, 3> out, d_q, d_k, d_v;
  View<float, 2> logsumexp; // written by forward
  View<const float, 2> logsumexp_read;
  float* delta; // out . d_out of each row
  Segments segments;
  int64_t heads_q, heads_kv, dim;
  float scale;
};

template <class T>
__device__ float dot(const T* a, const T* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += float(a[i]) * float(b[i]);
  return sum;
}

template <class T>
__device__ void add_scaled(float* sum, float factor, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += factor * float(values[i]);
}

template <class T>
__device__ void store(T* to, const float* sum, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = T(sum[i] * factor);
}

template <class T>
__global__ void forward_rows(Work<T> w) {
  const int64_t item = item_index(), row = item / w.heads_q, head = item % w.heads_q;
  if (row >= w.q.size(0)) return;
  const Range keys = w.segments.keys_of(row);
  const int64_t head_kv = head / (w.heads_q / w.heads_kv);
  const T* q = &w.q(row, head, 0);
  float largest = -INFINITY, sum = 0, mean[max_head_dim] = {};
  const bool seen = keys.begin < keys.end; // else the output is 0
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    largest = fmaxf(largest, w.scale * dot(q, &w.k(j, head_kv, 0), w.dim));
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const float p = expf(w.scale * dot(q, &w.k(j, head_kv, 0), w.dim) - largest);
    sum += p;
    add_scaled(mean, p, &w.v(j, head_kv, 0), w.dim);
  }
  store(&w.out(row, head, 0), mean, seen ? 1 / sum : 0, w.dim);
  if (w.logsumexp && seen) w.logsumexp(row, head) = largest + logf(sum);
}

template <class T>
__global__ void backward_queries(Work<T> w) {
  const int64_t item = item_index(), row = item / w.heads_q, head = item % w.heads_q;
  if (row >= w.q.size(0)) return;
  const Range keys = w.segments.keys_of(row);
  const int64_t head_kv = head / (w.heads_q / w.heads_kv);
  const T *q = &w.q(row, head, 0), *d_out = &w.d_out(row, head, 0);
  float sum[max_head_dim] = {};
  if (keys.begin < keys.end) w.delta[item] = dot(&w.out_read(row, head, 0), d_out, w.dim);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const T* k = &w.k(j, head_kv, 0);
    const float p = expf(w.scale * dot(q, k, w.dim) - w.logsumexp_read(row, head));
    add_scaled(sum, p * (dot(d_out, &w.v(j, head_kv, 0), w.dim) - w.delta[item]), k, w.dim);
  }
  store(&w.d_q(row, head, 0), sum, w.scale, w.dim);
}

// Each key row sums over the queries that attend to it: no atomics, so the result is deterministic.
template <class T>
__global__ void backward_keys(Work<T> w) {
  const int64_t item = item_index(), row = item / w.heads_kv, head = item % w.heads_kv;
  if (row >= w.k.size(0)) return;
  const Range queries = w.segments.queries_of(row);
  const int64_t group = w.heads_q / w.heads_kv;
  const T *k = &w.k(row, head, 0), *v = &w.v(row, head, 0);
  float sum_k[max_head_dim] = {}, sum_v[max_head_dim] = {};
  for (int64_t i = queries.begin; i < queries.end; ++i) {
    for (int64_t h = head * group; h < (head + 1) * group; ++h) {
      const T *q = &w.q(i, h, 0), *d_out = &w.d_out(i, h, 0);
      const float p = expf(w.scale * dot(q, k, w.dim) - w.logsumexp_read(i, h));
      add_scaled(sum_v, p, d_out, w.dim);
      add_scaled(sum_k, p * (dot(d_out, v, w.dim) - w.delta[i * w.heads_q + h]), q, w.dim);
    }
  }
  store(&w.d_k(row, head, 0), sum_k, w.scale, w.dim);
  store(&w.d_v(row, head, 0), sum_v, 1, w.dim);
}

// Rows of head_dim contiguous elements.
template <class T, class Tensor>
View<T, 3> heads(Tensor* tensor, const char* name) {
  View<T, 3> view(tensor, name);
  if (!view.rows_contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: the last dimension has gaps", name);
  return view;
}

class CudaAttention : public Attention {
 public:
  explicit CudaAttention(const fvlm_instance_config& config) {
    if (Support no = check_device(config.device, 8, 0); no.score == 0) {
      throw Failure(FVLM_ERROR_DEVICE, "%s", no.reason);
    }
  }

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // Checked by supports() and by every call.
  static Support fits(const Query& query) {
    if (!is_one_of<float, BFloat16, Half>(query.dtype)) return refuse("dtype %s not supported", name_of(query.dtype));
    if (query.rotary_dim != 0) return refuse("rotary_dim %d not supported", query.rotary_dim);
    if (query.guests || query.queries_alone)
      return refuse("extra queries and dq only (guests, queries_alone) not supported");
    if (query.head_dim > max_head_dim) return refuse("head_dim %d is more than %d", query.head_dim, max_head_dim);
    if (query.heads_kv < 1 || query.heads_q % query.heads_kv != 0) {
      return refuse("%d query heads are no multiple of %d key heads", query.heads_q, query.heads_kv);
    }
    return accept(10, "one thread per row"); // the reference has 1; raise it as this gets faster
  }

  void requirements(const Query& query, Requirements& requirements) const {
    if (query.needs_backward) requirements.save(float32, {query.tokens_q, query.heads_q}); // logsumexp
    Workspace space;
    space.take<float>(query.tokens_q * query.heads_q); // delta
    requirements.backward_workspace = space.used();
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      Work<T> w = begin<T>(query, arguments);
      w.out = heads<T>(arguments.out, "out");
      if (arguments.saved[0]) w.logsumexp = View<float, 2>(arguments.saved[0], "saved[0]");
      launch(call, query.tokens_q * query.heads_q, forward_rows<T>, w);
    });
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& arguments) {
    require(fits(query));
    dispatch<float, BFloat16, Half>(query.dtype, [&](auto element) {
      using T = typename decltype(element)::type;
      Work<T> w = begin<T>(query, arguments);
      w.out_read = heads<const T>(arguments.out, "out");
      w.d_out = heads<const T>(arguments.d_out, "d_out");
      w.d_q = heads<T>(arguments.d_q, "d_q");
      w.d_k = heads<T>(arguments.d_k, "d_k");
      w.d_v = heads<T>(arguments.d_v, "d_v");
      w.logsumexp_read = View<const float, 2>(arguments.saved[0], "saved[0]");
      Workspace space(call);
      w.delta = space.take<float>(query.tokens_q * query.heads_q).data();
      launch(call, query.tokens_q * query.heads_q, backward_queries<T>, w);
      launch(call, query.tokens_kv * query.heads_kv, backward_keys<T>, w);
    });
  }

 private:
  template <class T, class Arguments>
  static Work<T> begin(const Query& query, const Arguments& arguments) {
    Work<T> w{};
    w.q = heads<const T>(arguments.q, "q");
    w.k = heads<const T>(arguments.k, "k");
    w.v = heads<const T>(arguments.v, "v");
    w.segments = {View<const std::int32_t, 1>(arguments.cu_seqlens_q, "cu_seqlens_q"),
                  View<const std::int32_t, 1>(arguments.cu_seqlens_kv, "cu_seqlens_kv"), query.causal != 0};
    w.heads_q = query.heads_q;
    w.heads_kv = query.heads_kv;
    w.dim = query.head_dim;
    w.scale = query.scale;
    return w;
  }
};

} // namespace

FVLM_PLUGIN("@NAME@", "0.1.0", CudaAttention)
