// loss.cpp: the plugin's face: which tokens count, how they are cut into chunks, which thread does which block.
#include "common/tasks.h"
#include "loss_kernels.h"

#include <fvlm/fvlm.hpp>

#include <algorithm>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;

// Logits of so many bytes are kept between the two halves of fused(). More means fewer passes over the weight.
constexpr int64_t kept_logits = 96 << 20;

// d_hidden is summed in so many parts of the vocabulary, whatever the number of threads: the same bits on any machine.
constexpr int64_t most_parts = 8;

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
  explicit LossChunked(const fvlm_instance_config& config) : host_(config.host), kernels_(loss_kernels(cpu_level())) {}

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return refuse("runs on the CPU only");
    if (!is_one_of<float, BFloat16>(query.dtype)) return refuse("dtype %s not supported", sdk::name_of(query.dtype));
    if (query.needs_d_weight && query.gradient_dtype != float32)
      return refuse("d_weight is summed over chunks in float32; %s not supported", sdk::name_of(query.gradient_dtype));
    if (query.tokens < 0 || query.width < 1 || query.vocab < 1) return refuse("an empty head");
    return accept(300, "logits by chunks, %s", name_of(cpu_level()));
  }

  void requirements(const Query& query, Requirements& wanted) const {
    require(supports(query));
    const auto size = [&](Pass pass) {
      Workspace space;
      (void)take(space, query, pass);
      return space.used();
    };
    wanted.forward_workspace = size(Pass::forward);
    wanted.backward_workspace = size(Pass::fused); // which without a gradient is a forward
    if (!query.needs_d_hidden && !query.needs_d_weight) return;
    wanted.backward_workspace = std::max(wanted.backward_workspace, size(Pass::backward));
    wanted.save(float32, {query.tokens});
  }

  void forward(const fvlm_call& call, const Query& query, const Forward& a) const {
    require(supports(query));
    Sweep sweep(call, query, *this, Pass::forward, a.hidden, a.weight, a.targets);
    const auto losses = vector_of<float>(a.losses, query.tokens, "losses");
    const auto log_sums = a.saved[0] ? vector_of<float>(a.saved[0], query.tokens, "saved[0]") : View<float, 1>();
    for (int64_t t = 0; t < query.tokens; ++t) losses(t) = 0;
    sweep.run([&](LossChunk& chunk, const int64_t* tokens) {
      logits(chunk, sweep.space);
      for (int64_t r = 0; r < chunk.rows; ++r) {
        losses(tokens[r]) = loss_of(chunk, r);
        if (log_sums) log_sums(tokens[r]) = chunk.log_sums[r];
      }
    });
  }

  void backward(const fvlm_call& call, const Query& query, const Backward& a) const {
    require(supports(query));
    Sweep sweep(call, query, *this, Pass::backward, a.hidden, a.weight, a.targets);
    const auto d_losses = vector_of<const float>(a.d_losses, query.tokens, "d_losses");
    const auto log_sums = vector_of<const float>(a.saved[0], query.tokens, "saved[0]");
    sweep.want(a.d_hidden, a.d_weight, a.accumulate_d_weight != 0);
    sweep.run([&](LossChunk& chunk, const int64_t* tokens) {
      for (int64_t r = 0; r < chunk.rows; ++r) {
        sweep.space.log_sums[static_cast<std::size_t>(r)] = log_sums(tokens[r]);
        sweep.space.d_losses[static_cast<std::size_t>(r)] = d_losses(tokens[r]);
      }
      gradients(chunk, sweep, tokens);
    });
  }

  void fused(const fvlm_call& call, const Query& query, const Fused& a) const {
    require(supports(query));
    Sweep sweep(call, query, *this, Pass::fused, a.hidden, a.weight, a.targets);
    const auto d_losses = vector_of<const float>(a.d_losses, query.tokens, "d_losses");
    const auto losses = vector_of<float>(a.losses, query.tokens, "losses");
    for (int64_t t = 0; t < query.tokens; ++t) losses(t) = 0;
    sweep.want(a.d_hidden, a.d_weight, a.accumulate_d_weight != 0);
    sweep.run([&](LossChunk& chunk, const int64_t* tokens) {
      logits(chunk, sweep.space);
      for (int64_t r = 0; r < chunk.rows; ++r) {
        losses(tokens[r]) = loss_of(chunk, r);
        sweep.space.d_losses[static_cast<std::size_t>(r)] = d_losses(tokens[r]);
      }
      gradients(chunk, sweep, tokens);
    });
  }

 private:
  // The workspace of one pass, and the sizes that it follows from.
  struct Space {
    int64_t block, blocks, parts, most_rows, scratch_floats;
    Span<int64_t> tokens, targets;
    Span<float> hidden, hidden_panels, logits, maxima, sums, target_logits, log_sums, d_losses, d_hidden, scratch;
  };

  Space take(Workspace& workspace, const Query& query, Pass pass) const {
    Space s{};
    s.block = query.width <= 1024 ? 128 : 64;
    s.blocks = (query.vocab + s.block - 1) / s.block;
    s.parts = std::min(s.blocks, most_parts);
    const int64_t row_bytes = s.blocks * s.block * static_cast<int64_t>(sizeof(float));
    const int64_t cap = pass == Pass::forward    ? 2048
                        : pass == Pass::backward ? 512
                                                 : std::clamp<int64_t>(kept_logits / row_bytes, 48, 1024);
    s.most_rows = std::min(query.tokens, cap);
    const int64_t padded = kernels_.padded_width(query.width), rows = s.most_rows;
    s.tokens = workspace.take<int64_t>(query.tokens);
    s.targets = workspace.take<int64_t>(rows);
    s.hidden = workspace.take<float>(rows * padded);
    s.log_sums = workspace.take<float>(rows);
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

  // A walk over the tokens that have a loss, some rows at a time.
  struct Sweep {
    Sweep(const fvlm_call& call, const Query& query, const LossChunked& plugin, Pass pass, const fvlm_tensor* hidden,
          const fvlm_tensor* weight, const fvlm_tensor* targets)
        : query(query), plugin(plugin), hidden(matrix_of(hidden, query.dtype, query.tokens, query.width, "hidden")),
          targets(vector_of<const int64_t>(targets, query.tokens, "targets")) {
      Workspace workspace(call);
      space = plugin.take(workspace, query, pass);
      const Matrix w = matrix_of(weight, query.dtype, query.vocab, query.width, "weight");
      chunk.weight = w.data;
      chunk.weight_row = w.row;
      chunk.bfloat = query.dtype == bfloat16;
      chunk.width = query.width;
      chunk.vocab = query.vocab;
      chunk.block = space.block;
      chunk.targets = space.targets.data();
      chunk.hidden = space.hidden.data();
      chunk.logits = space.logits.data();
      chunk.maxima = space.maxima.data();
      chunk.sums = space.sums.data();
      chunk.target_logits = space.target_logits.data();
      chunk.log_sums = space.log_sums.data();
      chunk.d_losses = space.d_losses.data();
      for (int64_t t = 0; t < query.tokens; ++t) {
        const int64_t target = this->targets(t);
        if (target >= query.vocab)
          throw Failure(FVLM_ERROR_ARGUMENT, "targets[%lld] is %lld, the vocabulary has %lld entries",
                        static_cast<long long>(t), static_cast<long long>(target), static_cast<long long>(query.vocab));
        if (target >= 0) space.tokens[static_cast<std::size_t>(count++)] = t;
      }
    }

    // Which gradients this call asks for. Rows without a loss get their zeros here.
    void want(fvlm_tensor* d_hidden_wanted, fvlm_tensor* d_weight_wanted, bool accumulate) {
      if ((d_hidden_wanted && !query.needs_d_hidden) || (d_weight_wanted && !query.needs_d_weight))
        throw Failure(FVLM_ERROR_ARGUMENT, "a gradient is asked for that the query said is not needed");
      if (d_hidden_wanted) {
        d_hidden = matrix_of(d_hidden_wanted, query.dtype, query.tokens, query.width, "d_hidden");
        clear_rows(d_hidden, bytes_of(query.dtype), query.tokens, [&](int64_t t) { return targets(t) < 0; });
      }
      if (!d_weight_wanted) return;
      const Matrix w = matrix_of(d_weight_wanted, float32, query.vocab, query.width, "d_weight");
      if (count == 0 && !accumulate) clear_rows(w, sizeof(float), query.vocab, [](int64_t) { return true; });
      chunk.d_weight = static_cast<float*>(w.data);
      chunk.d_weight_row = w.row;
      chunk.add_d_weight = accumulate;
      chunk.hidden_panels = space.hidden_panels.data();
    }

    template <class Wanted>
    void clear_rows(const Matrix& matrix, std::size_t element, int64_t rows, const Wanted& wanted) const {
      for (int64_t r = 0; r < rows; ++r)
        if (wanted(r))
          std::memset(static_cast<char*>(matrix.data) + static_cast<std::size_t>(r * matrix.row) * element, 0,
                      static_cast<std::size_t>(query.width) * element);
    }

    // body(chunk, tokens): chunk.rows rows, which are these tokens.
    template <class Body>
    void run(const Body& body) {
      if (count == 0) return;
      const int64_t chunks = (count + space.most_rows - 1) / space.most_rows;
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
    int64_t count = 0; // tokens that have a loss
  };

  static float loss_of(const LossChunk& chunk, int64_t r) {
    return (chunk.log_sums[r] - chunk.target_logits[r]) * 0.693147180559945309f;
  }

  void logits(const LossChunk& chunk, const Space& space) const {
    run_tasks(host_, space.blocks, [&](int worker, int64_t block) {
      kernels_.logits_block(chunk, block, space.scratch.data() + worker * space.scratch_floats);
    });
    kernels_.combine(chunk);
  }

  void gradients(const LossChunk& chunk, const Sweep& sweep, const int64_t* tokens) const {
    if (!sweep.d_hidden.data && !chunk.d_weight) return;
    const Space& space = sweep.space;
    const int64_t part_size = space.most_rows * kernels_.padded_width(chunk.width);
    run_tasks(host_, space.parts, [&](int worker, int64_t part) {
      const int64_t begin = space.blocks * part / space.parts, end = space.blocks * (part + 1) / space.parts;
      float* d_hidden = sweep.d_hidden.data ? space.d_hidden.data() + part * part_size : nullptr;
      for (int64_t block = begin; block < end; ++block)
        kernels_.gradient_block(chunk, block, d_hidden, block == begin,
                                space.scratch.data() + worker * space.scratch_floats);
    });
    if (!sweep.d_hidden.data) return;
    parallel_for(host_, chunk.rows, 64, [&](int64_t first, int64_t last) {
      kernels_.finish_d_hidden(chunk, space.d_hidden.data(), space.parts, part_size, tokens, first, last,
                               sweep.d_hidden.data, sweep.d_hidden.row);
    });
  }

  const fvlm_host* host_;
  const LossKernels& kernels_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("loss-chunked", "0.1.0", fvlm::plugins::LossChunked)
