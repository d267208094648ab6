// loss.cpp: the plugin's entry points: the linear head and cross-entropy over chunks of tokens, so that never more than
// a chunk of logits is in memory, and which kernels process a chunk.
#include "common/cuda_device.h"
#include "common/cuda_tensor_map.h"
#include "finalize.h"
#include "gemm.h"
#include "gradients.h"
#include "softmax_rows.h"
#include "softmax_stats.h"

#include <fvlm/fvlm.hpp>

#include <algorithm>
#include <map>
#include <tuple>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
using std::int64_t;

// Every chunk costs another pass over d_weight, so chunks are as large as this much workspace allows, per 8,192 tokens.
constexpr int64_t max_workspace = 124 << 20, tokens_per_workspace = 8192;
constexpr int64_t row_unit = 128; // rows of a chunk are a multiple of a product's tile
// A chunk also reads the whole weight twice, which binds chunks of few rows of a large vocabulary: they have at least
// this part of the width as rows, even if that takes more workspace.
constexpr int64_t min_rows_divisor = 4;
// d_hidden is a product with few results and long sums. Where it is too narrow to occupy every multiprocessor, cuBLASLt
// splits the sums (split-K), which takes a workspace.
constexpr int64_t min_wide = 1536;
constexpr int64_t cublas_bytes_narrow = 8 << 20, cublas_bytes_wide = 5 << 18;
// The fastest of cuBLASLt's candidate tiles for 16-bit operands on an H100 (bench/LOG.md); undefined: its own choice.
struct Tiles {
  int logits, d_hidden, d_weight;
};
constexpr Tiles narrow_tiles{CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_128x160};
constexpr Tiles wide_tiles{CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_UNDEFINED,
                           CUBLASLT_MATMUL_TILE_UNDEFINED};

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

Matrix matrix_of(const fvlm_tensor* tensor, fvlm_dtype dtype, int64_t rows, int64_t columns, const char* name) {
  if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 2 || tensor->shape[0] != rows || tensor->shape[1] != columns)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s [%lld, %lld]", name, sdk::name_of(dtype),
                  static_cast<long long>(rows), static_cast<long long>(columns));
  if (columns > 1 && tensor->strides[1] != 1)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: rows have to be contiguous", name);
  if (rows > 1 && tensor->strides[0] < columns) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: rows overlap", name);
  return {tensor->data, std::max(tensor->strides[0], columns)};
}

template <class Element>
Element* vector_of(std::conditional_t<std::is_const_v<Element>, const fvlm_tensor, fvlm_tensor>* tensor, int64_t size,
                   const char* name) {
  const View<Element, 1> view(tensor, name);
  if (view.size(0) != size)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s has %lld entries, expected %lld", name, static_cast<long long>(view.size(0)),
                  static_cast<long long>(size));
  if (!view.contiguous()) throw Failure(FVLM_ERROR_UNSUPPORTED, "%s has to be contiguous", name);
  return view.data();
}

template <class Element>
Element* offset_or_null(Element* pointer, int64_t count) {
  return pointer ? pointer + count : nullptr;
}

// Ignores matrices without data.
bool all_tma_compatible(std::initializer_list<Matrix> matrices) {
  return std::all_of(matrices.begin(), matrices.end(),
                     [](const Matrix& each) { return !each.data || tma_compatible(each.data, each.row_stride); });
}

Matrix row_from(const Matrix& matrix, int64_t row, fvlm_dtype dtype) {
  return {static_cast<char*>(matrix.data) + row * matrix.row_stride * static_cast<int64_t>(bytes_of(dtype)),
          matrix.row_stride};
}

class LossCuda : public Loss {
 public:
  explicit LossCuda(const fvlm_instance_config& config)
      : multiprocessors_(multiprocessor_count(config.device)), on_hopper_(is_hopper(config.device)) {}

  static constexpr std::uint32_t features = FVLM_LOSS_SOFTCAP;

  static Support supports(const Query& query) {
    if (Support no = check_device(query.device, 8, 0); no.score == 0) return no;
    if (!is_one_of<float, BFloat16, Half>(query.dtype))
      return refuse("dtype %s is not supported", sdk::name_of(query.dtype));
    if (query.needs_d_weight && query.gradient_dtype != query.dtype && query.gradient_dtype != float32)
      return refuse("d_weight in %s is not supported with dtype %s", sdk::name_of(query.gradient_dtype),
                    sdk::name_of(query.dtype));
    if (query.tokens < 0 || query.width < 1 || query.vocab < 1)
      return refuse("the head is empty: expected tokens >= 0, width >= 1 and vocab >= 1");
    if (query.tokens > INT32_MAX || query.width > INT32_MAX || query.vocab > INT32_MAX / 2)
      return refuse("the head is too large: tokens and width have to be below 2^31, vocab below 2^30");
    return accept(300, "cuBLASLt, logits in chunks");
  }

  void requirements(const Query& query, Requirements& requirements) const {
    require(supports(query));
    const bool gradients = query.needs_d_hidden || query.needs_d_weight;
    Workspace forward, backward;
    (void)allocate(forward, query, false);
    (void)allocate(backward, query, gradients);
    requirements.forward_workspace = forward.used();
    requirements.backward_workspace = backward.used(); // without a gradient this is a forward
    if (gradients) requirements.save(float32, {query.tokens});
  }

  void prepare(const fvlm_call&, const Query& query) {
    require(supports(query));
    const Key key = key_of(query);
    if (query.tokens == 0 || plans_.count(key)) return;
    const int64_t rows = chunk_rows(query), last = (query.tokens - 1) % rows + 1;
    plans_[key] = {products(query, rows), products(query, last)};
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) const {
    require(supports(query));
    const ChunkedPass pass(*this, call, query, a.hidden, a.weight, a.targets, false);
    LossRows rows = pass.rows;
    rows.losses = vector_of<float>(a.losses, query.tokens, "losses");
    if (a.saved[0]) rows.lse = vector_of<float>(a.saved[0], query.tokens, "saved[0]");
    pass.run(rows, {});
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) const {
    require(supports(query));
    const ChunkedPass pass(*this, call, query, a.hidden, a.weight, a.targets, true);
    LossRows rows = pass.rows;
    rows.d_losses = vector_of<const float>(a.d_losses, query.tokens, "d_losses");
    rows.known_lse = vector_of<const float>(a.saved[0], query.tokens, "saved[0]");
    pass.run(rows, gradients_of(query, a.d_hidden, a.d_weight, a.accumulate_d_weight != 0));
  }

  void fused(const fvlm_call& call, const Query& query, const Fused& a) const {
    require(supports(query));
    const ChunkedPass pass(*this, call, query, a.hidden, a.weight, a.targets, true);
    LossRows rows = pass.rows;
    rows.losses = vector_of<float>(a.losses, query.tokens, "losses");
    rows.d_losses = vector_of<const float>(a.d_losses, query.tokens, "d_losses");
    pass.run(rows, gradients_of(query, a.d_hidden, a.d_weight, a.accumulate_d_weight != 0));
  }

 private:
  // What a plan depends on.
  using Key = std::tuple<int64_t, int64_t, int64_t, int, int, bool, bool>;
  struct Products {
    Gemm logits, d_hidden, d_weight;
  };
  struct Plan {
    Products whole, last; // the last chunk has fewer rows
  };
  struct Scratch {
    Span<char> logits, masked_hidden, product_workspace;
    Span<float> shifts, factors, parts;
  };
  struct Gradients {
    Matrix d_hidden, d_weight; // without data: no gradient required
    bool accumulate = false, fused = false;
  };

  static Key key_of(const Query& q) {
    return {q.tokens,
            q.width,
            q.vocab,
            q.dtype.code * 256 + q.dtype.bits,
            q.gradient_dtype.bits,
            q.needs_d_hidden != 0,
            q.needs_d_weight != 0};
  }

  // Rows of logits are aligned to 16 bytes.
  static int64_t logits_row(const Query& query) {
    return round_up(query.vocab, 16 / static_cast<int64_t>(bytes_of(query.dtype)));
  }
  static int64_t masked_row(const Query& query) {
    return round_up(query.width, 16 / static_cast<int64_t>(bytes_of(query.dtype)));
  }

  static bool is_wide(const Query& query) { return query.width >= min_wide; }
  static int64_t cublas_bytes(const Query& query) { return is_wide(query) ? cublas_bytes_wide : cublas_bytes_narrow; }

  // Whether logits and softmax can be fused (softmax_stats.h), if all matrices are TMA-compatible.
  bool may_fuse_softmax(const Query& query) const {
    return on_hopper_ && query.dtype == bfloat16 && query.width % 8 == 0;
  }

  // Whether both gradients can then be computed by one kernel (gradients.h). With d_weight in bfloat16 cuBLASLt is fast
  // enough.
  bool may_fuse_gradients(const Query& query) const {
    return may_fuse_softmax(query) && query.needs_d_hidden && query.needs_d_weight && query.gradient_dtype == float32 &&
           !is_wide(query);
  }
  int64_t product_workspace_bytes(const Query& query) const {
    return may_fuse_gradients(query) ? std::max(cublas_bytes(query), fused_gradients_workspace(multiprocessors_))
                                     : cublas_bytes(query);
  }

  // Tokens are divided evenly over the chunks.
  int64_t chunk_rows(const Query& query) const {
    const int64_t row_bytes = (logits_row(query) + masked_row(query)) * static_cast<int64_t>(bytes_of(query.dtype));
    int64_t left =
        max_workspace * std::max<int64_t>(1, query.tokens / tokens_per_workspace) - product_workspace_bytes(query);
    if (may_fuse_softmax(query)) left -= (2 * query.tokens + max_partial_sums(multiprocessors_, row_unit)) * 4;
    const int64_t max_rows =
        std::max(round_up(query.width / min_rows_divisor, row_unit), left / row_bytes / row_unit * row_unit);
    if (query.tokens <= max_rows) return std::max<int64_t>(query.tokens, 1);
    const int64_t chunks = (query.tokens + max_rows - 1) / max_rows;
    return std::min(max_rows, round_up((query.tokens + chunks - 1) / chunks, row_unit));
  }

  Scratch allocate(Workspace& workspace, const Query& query, bool gradients) const {
    const int64_t rows = std::min(chunk_rows(query), query.tokens),
                  element = static_cast<int64_t>(bytes_of(query.dtype));
    Scratch scratch;
    scratch.logits = workspace.take<char>(rows * logits_row(query) * element);
    scratch.masked_hidden =
        workspace.take<char>(gradients && query.needs_d_weight ? rows * masked_row(query) * element : 0);
    scratch.product_workspace = workspace.take<char>(
        gradients && query.needs_d_hidden && query.tokens > 0 ? product_workspace_bytes(query) : 0);
    const bool fuses_softmax = may_fuse_softmax(query);
    scratch.shifts = workspace.take<float>(fuses_softmax ? query.tokens : 0);
    scratch.factors = workspace.take<float>(fuses_softmax && gradients ? query.tokens : 0);
    scratch.parts = workspace.take<float>(fuses_softmax ? max_partial_sums(multiprocessors_, rows) : 0);
    return scratch;
  }

  // Only d_hidden gains from a cuBLASLt workspace; without one no workspace is cleared before the other products.
  Products products(const Query& q, int64_t rows) const {
    Products made;
    Tiles tiles = is_wide(q) ? wide_tiles : narrow_tiles;
    if (q.dtype == float32) tiles = {};
    made.logits = Gemm(library_, {q.dtype, q.dtype, rows, q.vocab, q.width, false, true}, 0, tiles.logits);
    if (q.needs_d_hidden)
      made.d_hidden = Gemm(library_, {q.dtype, q.dtype, rows, q.width, q.vocab, false, false},
                           static_cast<std::size_t>(cublas_bytes(q)), tiles.d_hidden);
    if (q.needs_d_weight)
      made.d_weight =
          Gemm(library_, {q.dtype, q.gradient_dtype, q.vocab, q.width, rows, true, false}, 0, tiles.d_weight);
    return made;
  }

  static Gradients gradients_of(const Query& query, fvlm_tensor* d_hidden, fvlm_tensor* d_weight, bool accumulate) {
    if ((d_hidden && !query.needs_d_hidden) || (d_weight && !query.needs_d_weight))
      throw Failure(FVLM_ERROR_ARGUMENT, "a gradient was requested that the query does not need");
    Gradients gradients;
    if (d_hidden) gradients.d_hidden = matrix_of(d_hidden, query.dtype, query.tokens, query.width, "d_hidden");
    if (d_weight) gradients.d_weight = matrix_of(d_weight, query.gradient_dtype, query.vocab, query.width, "d_weight");
    gradients.accumulate = accumulate;
    return gradients;
  }

  // Iterates over the chunks of a call.
  struct ChunkedPass {
    ChunkedPass(const LossCuda& plugin, const fvlm_call& call, const Query& query, const fvlm_tensor* hidden_,
                const fvlm_tensor* weight_, const fvlm_tensor* targets, bool gradients)
        : plugin(plugin), call(call), query(query) {
      hidden = matrix_of(hidden_, query.dtype, query.tokens, query.width, "hidden");
      weight = matrix_of(weight_, query.dtype, query.vocab, query.width, "weight");
      Workspace workspace(call);
      scratch = plugin.allocate(workspace, query, gradients && (query.needs_d_hidden || query.needs_d_weight));
      rows.targets = vector_of<const int64_t>(targets, query.tokens, "targets");
      rows.vocab = query.vocab;
      rows.width = query.width;
      rows.logits = scratch.logits.data();
      rows.logits_row = logits_row(query);
      rows.hidden_row = hidden.row_stride;
      rows.masked_row = masked_row(query);
      rows.softcap = Softcap(softcap(query));
    }

    void run(LossRows a, Gradients gradients) const {
      if (query.tokens == 0) {
        if (gradients.d_weight.data && !gradients.accumulate) clear(gradients.d_weight);
        return;
      }
      const auto plan = plugin.plans_.find(key_of(query));
      if (plan == plugin.plans_.end()) throw Failure(FVLM_ERROR_ARGUMENT, "prepare() was not called for this shape");
      if (!gradients.d_hidden.data && !gradients.d_weight.data) a.d_losses = nullptr;
      if (gradients.d_weight.data) a.masked_hidden = scratch.masked_hidden.data();
      if (!a.losses && !a.d_losses) return;
      const bool fuses_softmax =
          plugin.may_fuse_softmax(query) && all_tma_compatible({hidden, weight, gradients.d_hidden});
      if (fuses_softmax) compute_shifts(device(), tokens_of(a, 0, query.tokens));
      const int64_t chunk = plugin.chunk_rows(query);
      gradients.fused = fuses_softmax && plugin.may_fuse_gradients(query) && gradients.d_hidden.data &&
                        gradients.d_weight.data && all_tma_compatible({gradients.d_weight}) &&
                        fused_gradients_support(plugin.multiprocessors_, {chunk, query.width, query.vocab});
      for (int64_t first = 0; first < query.tokens; first += chunk) {
        a.rows = std::min(chunk, query.tokens - first);
        const Products& products = a.rows == chunk ? plan->second.whole : plan->second.last;
        if (fuses_softmax)
          run_fused_softmax(products, a, gradients, first);
        else
          run_softmax_rows(products, at(a, first), gradients, first);
        gradients.accumulate = true;
      }
      if (fuses_softmax && gradients.d_hidden.data && !gradients.fused)
        scale_rows(device(), gradients.d_hidden, query.tokens, query.width, scratch.factors.data());
    }

   private:
    LossRows at(LossRows a, int64_t first) const {
      const auto move = [first](auto*& pointer) { pointer = offset_or_null(pointer, first); };
      move(a.targets), move(a.losses), move(a.lse), move(a.known_lse), move(a.d_losses);
      a.hidden = row_from(hidden, first, query.dtype).data;
      return a;
    }

    Device device() const { return {stream_of(call), plugin.multiprocessors_}; }

    LossTokens tokens_of(const LossRows& a, int64_t first, int64_t count) const {
      return {count,
              query.width,
              query.vocab,
              row_from(hidden, first, query.dtype),
              weight,
              offset_or_null(a.targets, first),
              offset_or_null(a.known_lse, first),
              scratch.shifts.data() + first,
              a.softcap};
    }

    void run_fused_softmax(const Products& products, const LossRows& a, const Gradients& gradients,
                           int64_t first) const {
      const LossTokens tokens = tokens_of(a, first, a.rows);
      const Matrix out{a.logits, a.logits_row}, scaled_hidden{a.masked_hidden, a.masked_row};
      softmax_stats(device(), {tokens.hidden, weight, a.d_losses ? out : Matrix{}, tokens.shifts, scratch.parts.data(),
                               a.rows, query.width, query.vocab, a.softcap});
      finalize(device(), tokens,
               {scratch.parts.data(), partial_sum_count(plugin.multiprocessors_, a.rows),
                offset_or_null(a.losses, first), offset_or_null(a.lse, first), offset_or_null(a.d_losses, first), out,
                scaled_hidden, scratch.factors.data() + (a.d_losses ? first : 0)});
      if (gradients.fused)
        return fused_gradients(device(), {a.rows, query.width, query.vocab},
                               {out, weight, scaled_hidden, scratch.factors.data() + first,
                                row_from(gradients.d_hidden, first, query.dtype), gradients.d_weight,
                                gradients.accumulate},
                               scratch.product_workspace.data());
      if (gradients.d_hidden.data)
        run(products.d_hidden, out, weight, row_from(gradients.d_hidden, first, query.dtype), false);
      if (gradients.d_weight.data) run(products.d_weight, out, scaled_hidden, gradients.d_weight, gradients.accumulate);
    }

    void run_softmax_rows(const Products& products, const LossRows& a, const Gradients& gradients,
                          int64_t first) const {
      const Matrix logits{a.logits, a.logits_row};
      run(products.logits, row_from(hidden, first, query.dtype), weight, logits, false);
      loss_rows(call, query.dtype, a);
      if (!a.d_losses) return;
      if (gradients.d_hidden.data)
        run(products.d_hidden, logits, weight, row_from(gradients.d_hidden, first, query.dtype), false);
      if (gradients.d_weight.data)
        run(products.d_weight, logits, {a.masked_hidden, a.masked_row}, gradients.d_weight, gradients.accumulate);
    }

    void run(const Gemm& product, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) const {
      product.run(plugin.library_, call, a, b, c, accumulate, scratch.product_workspace.data());
    }

    void clear(const Matrix& matrix) const {
      const std::size_t element = bytes_of(query.gradient_dtype);
      check_cuda(cudaMemset2DAsync(matrix.data, static_cast<std::size_t>(matrix.row_stride) * element, 0,
                                   static_cast<std::size_t>(query.width) * element,
                                   static_cast<std::size_t>(query.vocab), stream_of(call)),
                 "cudaMemset2DAsync");
    }

    const LossCuda& plugin;
    const fvlm_call& call;
    const Query& query;
    Matrix hidden, weight;
    Scratch scratch;

   public:
    LossRows rows; // the fields that all calls set alike
  };

  int multiprocessors_;
  bool on_hopper_;
  CublasLt library_;
  std::map<Key, Plan> plans_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("loss-cuda", "0.1.0", fvlm::plugins::LossCuda)
