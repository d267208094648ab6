// loss.cpp: the plugin: selects the tokens that have a target, splits them into chunks, and distributes blocks of the
// vocabulary over threads.
#include "common/tasks.h"
#include "loss_kernels.h"

#include <fvlm/fvlm.hpp>

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;

// Bytes of logits that are kept between the two halves of fused(). More bytes mean fewer passes over the weight.
constexpr int64_t max_logit_bytes = 96 << 20;

// d_hidden is the sum of at most this many partial sums over ranges of the vocabulary, whatever the number of
// threads: the result has the same bits on any machine.
constexpr int64_t max_parts = 8;

enum class Pass { forward, backward, fused };

struct Matrix {
  void* data = nullptr;
  int64_t row = 0;
};

Matrix matrix_of(const fvlm_tensor* tensor, fvlm_dtype dtype, int64_t rows, int64_t columns, const char* name) {
  if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
  if (tensor->dtype != dtype || tensor->ndim != 2 || tensor->shape[0] != rows || tensor->shape[1] != columns)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s is not %s [%lld, %lld]", name, sdk::name_of(dtype),
                  static_cast<long long>(rows), static_cast<long long>(columns));
  if (columns > 1 && tensor->strides[1] != 1)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "%s: its rows must be contiguous", name);
  return {tensor->data, tensor->strides[0]};
}

template <class Element>
View<Element, 1> vector_of(std::conditional_t<std::is_const_v<Element>, const fvlm_tensor, fvlm_tensor>* tensor,
                           int64_t size, const char* name) {
  const View<Element, 1> view(tensor, name);
  if (view.size(0) != size)
    throw Failure(FVLM_ERROR_ARGUMENT, "%s has %lld entries, not %lld", name, static_cast<long long>(view.size(0)),
                  static_cast<long long>(size));
  return view;
}

class LossChunked : public Loss {
 public:
  static constexpr std::uint32_t features = FVLM_LOSS_SOFTCAP;

  explicit LossChunked(const fvlm_instance_config& config) : host_(config.host), kernels_(loss_kernels(cpu_level())) {}

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16>(query.dtype)) return refuse("dtype %s not supported", sdk::name_of(query.dtype));
    if (query.needs_d_weight && query.gradient_dtype != float32)
      return refuse("d_weight is summed over chunks in float32; %s not supported", sdk::name_of(query.gradient_dtype));
    if (query.tokens < 0 || query.width < 1 || query.vocab < 1)
      return refuse("an empty head: %lld tokens, width %lld, vocab %lld", static_cast<long long>(query.tokens),
                    static_cast<long long>(query.width), static_cast<long long>(query.vocab));
    return accept(300, "logits by chunks, %s", name_of(cpu_level()));
  }

  void requirements(const Query& query, Requirements& requirements) const {
    require(supports(query));
    const auto size = [&](Pass pass) {
      Workspace space;
      (void)take(space, query, pass);
      return space.used();
    };
    requirements.forward_workspace = size(Pass::forward);
    requirements.backward_workspace = size(Pass::fused); // which is a forward where no gradient is required
    if (!query.needs_d_hidden && !query.needs_d_weight) return;
    requirements.backward_workspace = std::max(requirements.backward_workspace, size(Pass::backward));
    requirements.save(float32, {query.tokens});
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) const {
    require(supports(query));
    ChunkedPass pass(call, query, *this, Pass::forward, a.hidden, a.weight, a.targets);
    const auto losses = vector_of<float>(a.losses, query.tokens, "losses");
    const auto log_sum_exps = a.saved[0] ? vector_of<float>(a.saved[0], query.tokens, "saved[0]") : View<float, 1>();
    for (int64_t t = 0; t < query.tokens; ++t) losses(t) = 0;
    pass.run([&](LossChunk& chunk, const int64_t* tokens) {
      logits(chunk, pass.space);
      for (int64_t r = 0; r < chunk.rows; ++r) {
        losses(tokens[r]) = loss_of(chunk, r);
        if (log_sum_exps) log_sum_exps(tokens[r]) = chunk.log_sum_exps[r];
      }
    });
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) const {
    require(supports(query));
    ChunkedPass pass(call, query, *this, Pass::backward, a.hidden, a.weight, a.targets);
    const auto d_losses = vector_of<const float>(a.d_losses, query.tokens, "d_losses");
    const auto log_sum_exps = vector_of<const float>(a.saved[0], query.tokens, "saved[0]");
    pass.set_gradients(a.d_hidden, a.d_weight, a.accumulate_d_weight != 0);
    pass.run([&](LossChunk& chunk, const int64_t* tokens) {
      for (int64_t r = 0; r < chunk.rows; ++r) {
        pass.space.log_sum_exps[static_cast<std::size_t>(r)] = log_sum_exps(tokens[r]);
        pass.space.d_losses[static_cast<std::size_t>(r)] = d_losses(tokens[r]);
      }
      gradients(chunk, pass, tokens);
    });
  }

  void fused(const fvlm_call& call, const Query& query, const Fused& a) const {
    require(supports(query));
    ChunkedPass pass(call, query, *this, Pass::fused, a.hidden, a.weight, a.targets);
    const auto d_losses = vector_of<const float>(a.d_losses, query.tokens, "d_losses");
    const auto losses = vector_of<float>(a.losses, query.tokens, "losses");
    for (int64_t t = 0; t < query.tokens; ++t) losses(t) = 0;
    pass.set_gradients(a.d_hidden, a.d_weight, a.accumulate_d_weight != 0);
    pass.run([&](LossChunk& chunk, const int64_t* tokens) {
      logits(chunk, pass.space);
      for (int64_t r = 0; r < chunk.rows; ++r) {
        losses(tokens[r]) = loss_of(chunk, r);
        pass.space.d_losses[static_cast<std::size_t>(r)] = d_losses(tokens[r]);
      }
      gradients(chunk, pass, tokens);
    });
  }

 private:
  // The workspace of one pass, and the sizes that determine it.
  struct Space {
    int64_t block, blocks, parts, max_rows, scratch_floats;
    Span<int64_t> tokens, targets;
    Span<float> hidden, hidden_panels, logits, maxima, sums, target_logits, log_sum_exps, d_losses, d_hidden, scratch;
  };

  Space take(Workspace& workspace, const Query& query, Pass pass) const {
    Space s{};
    s.block = query.width <= 1024 ? 128 : 64;
    s.blocks = (query.vocab + s.block - 1) / s.block;
    s.parts = std::min(s.blocks, max_parts);
    const int64_t row_bytes = s.blocks * s.block * static_cast<int64_t>(sizeof(float));
    const int64_t cap = pass == Pass::forward    ? 2048
                        : pass == Pass::backward ? 512
                                                 : std::clamp<int64_t>(max_logit_bytes / row_bytes, 48, 1024);
    s.max_rows = std::min(query.tokens, cap);
    const int64_t padded = kernels_.padded_width(query.width), rows = s.max_rows;
    s.tokens = workspace.take<int64_t>(query.tokens);
    s.targets = workspace.take<int64_t>(rows);
    s.hidden = workspace.take<float>(rows * padded);
    s.log_sum_exps = workspace.take<float>(rows);
    s.scratch_floats = 0;
    if (pass != Pass::backward) {
      s.maxima = workspace.take<float>(s.blocks * rows);
      s.sums = workspace.take<float>(s.blocks * rows);
      s.target_logits = workspace.take<float>(rows);
      s.scratch_floats = kernels_.logits_scratch(query.width, s.block);
    }
    if (pass == Pass::fused) s.logits = workspace.take<float>(s.blocks * s.block * rows);
    if (pass != Pass::forward) {
      s.d_losses = workspace.take<float>(rows);
      if (query.needs_d_weight) s.hidden_panels = workspace.take<float>(rows * padded);
      if (query.needs_d_hidden) s.d_hidden = workspace.take<float>(s.parts * rows * padded);
      s.scratch_floats = std::max(s.scratch_floats, kernels_.gradient_scratch(query.width, s.block, rows));
    }
    s.scratch_floats = (s.scratch_floats + 15) / 16 * 16;
    s.scratch = workspace.take<float>(workers(host_) * s.scratch_floats);
    return s;
  }

  // Iterates over the tokens that have a target, one chunk of rows at a time.
  struct ChunkedPass {
    ChunkedPass(const fvlm_call& call, const Query& query, const LossChunked& plugin, Pass pass,
                const fvlm_tensor* hidden, const fvlm_tensor* weight, const fvlm_tensor* targets)
        : query(query), plugin(plugin), hidden(matrix_of(hidden, query.dtype, query.tokens, query.width, "hidden")),
          targets(vector_of<const int64_t>(targets, query.tokens, "targets")) {
      Workspace workspace(call);
      space = plugin.take(workspace, query, pass);
      const Matrix w = matrix_of(weight, query.dtype, query.vocab, query.width, "weight");
      chunk.weight = w.data;
      chunk.weight_row = w.row;
      chunk.is_bfloat16 = query.dtype == bfloat16;
      chunk.width = query.width;
      chunk.vocab = query.vocab;
      chunk.block = space.block;
      chunk.softcap = Loss::softcap(query) * 1.44269504088896341f;
      chunk.targets = space.targets.data();
      chunk.hidden = space.hidden.data();
      chunk.logits = space.logits.data();
      chunk.maxima = space.maxima.data();
      chunk.sums = space.sums.data();
      chunk.target_logits = space.target_logits.data();
      chunk.log_sum_exps = space.log_sum_exps.data();
      chunk.d_losses = space.d_losses.data();
      for (int64_t t = 0; t < query.tokens; ++t) {
        const int64_t target = this->targets(t);
        if (target >= query.vocab)
          throw Failure(FVLM_ERROR_ARGUMENT, "targets[%lld] is %lld, but the vocabulary has %lld entries",
                        static_cast<long long>(t), static_cast<long long>(target), static_cast<long long>(query.vocab));
        if (target >= 0) space.tokens[static_cast<std::size_t>(count++)] = t;
      }
    }

    // Sets the gradients that this call computes, and zeroes the rows of d_hidden that have no target.
    void set_gradients(fvlm_tensor* d_hidden_tensor, fvlm_tensor* d_weight_tensor, bool accumulate) {
      if ((d_hidden_tensor && !query.needs_d_hidden) || (d_weight_tensor && !query.needs_d_weight))
        throw Failure(FVLM_ERROR_ARGUMENT, "a gradient was requested that the query declares as not needed");
      if (d_hidden_tensor) {
        d_hidden = matrix_of(d_hidden_tensor, query.dtype, query.tokens, query.width, "d_hidden");
        clear_rows(d_hidden, bytes_of(query.dtype), query.tokens, [&](int64_t t) { return targets(t) < 0; });
      }
      if (!d_weight_tensor) return;
      const Matrix w = matrix_of(d_weight_tensor, float32, query.vocab, query.width, "d_weight");
      if (count == 0 && !accumulate) clear_rows(w, sizeof(float), query.vocab, [](int64_t) { return true; });
      chunk.d_weight = static_cast<float*>(w.data);
      chunk.d_weight_row = w.row;
      chunk.add_d_weight = accumulate;
      chunk.hidden_panels = space.hidden_panels.data();
    }

    template <class Selected>
    void clear_rows(const Matrix& matrix, std::size_t element, int64_t rows, const Selected& selected) const {
      for (int64_t r = 0; r < rows; ++r)
        if (selected(r))
          std::memset(static_cast<char*>(matrix.data) + static_cast<std::size_t>(r * matrix.row) * element, 0,
                      static_cast<std::size_t>(query.width) * element);
    }

    // Calls body(chunk, tokens) per chunk; tokens are the token indices of its chunk.rows rows.
    template <class Body>
    void run(const Body& body) {
      if (count == 0) return;
      const int64_t chunks = (count + space.max_rows - 1) / space.max_rows;
      const int64_t rows = (count + chunks - 1) / chunks;
      for (int64_t first = 0; first < count; first += rows) {
        const int64_t* tokens = space.tokens.data() + first;
        chunk.rows = std::min(rows, count - first);
        for (int64_t r = 0; r < chunk.rows; ++r) space.targets[static_cast<std::size_t>(r)] = targets(tokens[r]);
        plugin.kernels_.pack_hidden(chunk, hidden.data, hidden.row, tokens);
        body(chunk, tokens);
        chunk.add_d_weight = true;
      }
    }

    const Query& query;
    const LossChunked& plugin;
    Matrix hidden, d_hidden;
    View<const int64_t, 1> targets;
    Space space{};
    LossChunk chunk{};
    int64_t count = 0; // number of tokens that have a target
  };

  static float loss_of(const LossChunk& chunk, int64_t r) {
    return (chunk.log_sum_exps[r] - chunk.target_logits[r]) * 0.693147180559945309f;
  }

  void logits(const LossChunk& chunk, const Space& space) const {
    run_tasks(host_, space.blocks, [&](int worker, int64_t block) {
      kernels_.logits_block(chunk, block, space.scratch.data() + worker * space.scratch_floats);
    });
    kernels_.reduce_log_sum_exps(chunk);
  }

  void gradients(const LossChunk& chunk, const ChunkedPass& pass, const int64_t* tokens) const {
    if (!pass.d_hidden.data && !chunk.d_weight) return;
    const Space& space = pass.space;
    const int64_t part_size = space.max_rows * kernels_.padded_width(chunk.width);
    run_tasks(host_, space.parts, [&](int worker, int64_t part) {
      const int64_t begin = space.blocks * part / space.parts, end = space.blocks * (part + 1) / space.parts;
      float* d_hidden = pass.d_hidden.data ? space.d_hidden.data() + part * part_size : nullptr;
      for (int64_t block = begin; block < end; ++block)
        kernels_.gradient_block(chunk, block, d_hidden, block == begin,
                                space.scratch.data() + worker * space.scratch_floats);
    });
    if (!pass.d_hidden.data) return;
    parallel_for(host_, chunk.rows, 64, [&](int64_t first, int64_t last) {
      kernels_.finish_d_hidden(chunk, space.d_hidden.data(), space.parts, part_size, tokens, first, last,
                               pass.d_hidden.data, pass.d_hidden.row);
    });
  }

  const fvlm_host* host_;
  const LossKernels& kernels_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("loss-chunked", "0.1.0", fvlm::plugins::LossChunked)
