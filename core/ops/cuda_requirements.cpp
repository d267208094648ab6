#include "ops/cuda_requirements.h"

#include "ops/reference/references.h"

#include <algorithm>
#include <map>
#include <utility>

#pragma GCC visibility push(hidden)
namespace fvlm::ops::cuda_requirements {

constexpr fvlm_dtype float32{FVLM_FLOAT, 32, 1}, int8{FVLM_INT, 8, 1};
constexpr int64_t float32_bytes = 4;

// In place of a bundled plugin, wherever the reference computes: without computing.
static sdk::Support preferred(const sdk::Support& reference) {
  return reference.score > 0 ? sdk::accept(100, "requirements alone") : reference;
}

// attention-flash and attention-cudnn.
struct Attention : reference::Attention {
  using reference::Attention::Attention;
  static sdk::Support supports(const Query& query) {
    if (query.rotary_dim != 0) return sdk::refuse("rotary embedding is applied before");
    if ((query.guests || query.queries_alone) && query.dtype.bits != 16)
      return sdk::refuse("deferred queries need 16-bit types");
    return preferred(reference::Attention::supports(query));
  }
  void requirements(const Query& query, sdk::Requirements& requirements) const {
    if (!query.needs_backward) return;
    requirements.save(float32, {query.tokens_q, query.heads_q});               // log-sum-exp of each row
    if (query.causal && query.dtype.code == FVLM_BFLOAT && !is_partial(query)) // rounding errors of the output
      requirements.save(int8, {query.tokens_q, query.heads_q, query.head_dim});
  }
};

// loss-cuda: the logits of some rows, their hidden states, and partial sums of these rows' gradients.
struct Loss : reference::Loss {
  using reference::Loss::Loss;
  static sdk::Support supports(const Query& query) { return preferred(reference::Loss::supports(query)); }
  void requirements(const Query& query, sdk::Requirements& requirements) const {
    constexpr int64_t max_logits = 96 << 20, max_parts = 8;
    const int64_t block = query.width <= 1024 ? 128 : 64, blocks = (query.vocab + block - 1) / block;
    const int64_t rows =
        std::min(query.tokens, std::clamp<int64_t>(max_logits / (blocks * block * float32_bytes), 48, 1024));
    const int64_t logits = blocks * block * rows + 2 * blocks * rows;
    const auto bytes =
        static_cast<uint64_t>(float32_bytes * (logits + rows * query.width * (2 + std::min(blocks, max_parts))));
    requirements.forward_workspace = requirements.backward_workspace = bytes;
    if (query.needs_d_hidden || query.needs_d_weight) requirements.save(float32, {query.tokens});
  }
};

// kernels-cuda and kernels-cublaslt, which save what the reference saves, and recurrence-cuda.
struct Kernels : reference::Kernels {
  using reference::Kernels::Kernels;
  static sdk::Support supports(const Query& query) {
    if (query.op == FVLM_OP_EXPERTS) return sdk::refuse("passes of many rows need more memory");
    if (query.op == FVLM_OP_DELTA_RULE &&
        (query.key_dim != 128 || query.head_dim != 128 || (query.dtype.bits != 16 && trains(query))))
      return sdk::refuse("the reference computes it");
    return preferred(reference::Kernels::supports(query));
  }
  void requirements(const Query& query, sdk::Requirements& requirements) const {
    reference::Kernels::requirements(query, requirements);
    if (query.op != FVLM_OP_DELTA_RULE || !trains(query)) return;
    // The states before chunks of 32 rows and the gradients of those after them, and two numbers for each of y.
    const int64_t chunks = query.rows / 32 + query.segments, element = query.dtype.bits / 8;
    requirements.backward_workspace = static_cast<uint64_t>(
        2 * element * query.width * (chunks * query.key_dim + query.rows) + 2 * float32_bytes * chunks * query.heads);
  }

 private:
  static bool trains(const Query& query) { return query.options & FVLM_WITH_BACKWARD; }
};

// optimizer-cuda.
struct AdamW : reference::AdamW {
  using reference::AdamW::AdamW;
  static sdk::Support supports(const Query& query) { return preferred(reference::AdamW::supports(query)); }
  static sdk::States states(const Query& query) { return {{"m", query.state_dtype}, {"v", float32}}; }
};

struct Muon : reference::Muon {
  using reference::Muon::Muon;
  static sdk::Support supports(const Query& query) { return preferred(reference::Muon::supports(query)); }
  static sdk::States states(const Query& query) { return {{"momentum", query.state_dtype}}; }
  // Matrices of one shape together, as many as fit into a batch: two copies each, and two products.
  void requirements(const Query& query, sdk::Requirements& requirements) const {
    constexpr int64_t max_matrices = 64, max_bytes = 128 << 20, products = 4 << 20;
    std::map<std::pair<int64_t, int64_t>, int64_t> matrices; // of each shape
    for (int64_t i = 0; i < query.segment_count; ++i) ++matrices[{query.segments[i].rows, query.segments[i].cols}];
    int64_t most = 0;
    for (const auto& [shape, count] : matrices) {
      const auto [small, large] = std::minmax(shape.first, shape.second);
      const int64_t one = 2 * (query.parameter_dtype.bits / 8) * small * (large + small);
      const int64_t batch = std::min({count, max_matrices, std::max<int64_t>(1, max_bytes / one)});
      most = std::max(most, batch * one + products);
    }
    requirements.forward_workspace = static_cast<uint64_t>(most);
  }
};

static const fvlm_plugin* plugin(const fvlm_host* host) {
  return sdk::entry<Attention, Loss, Kernels, AdamW, Muon>(host, "cuda-requirements", host ? host->engine_version : "");
}

} // namespace fvlm::ops::cuda_requirements
#pragma GCC visibility pop

const fvlm_plugin* fvlm::ops::cuda_requirements_entry(const fvlm_host* host) {
  return cuda_requirements::plugin(host);
}
