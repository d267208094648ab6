// graphs.cpp: describes the attention graphs to cuDNN through its frontend and runs them.
#include "graphs.h"

#include <algorithm>
#include <cudnn_frontend.h>
#include <tuple>
#include <vector>

namespace fvlm::plugins {
namespace {

using namespace fvlm::sdk;
namespace fe = cudnn_frontend;
using std::int64_t;

void check(fe::error_t error, const char* what) {
  if (error.is_good()) return;
  throw Failure(error.get_code() == fe::error_code_t::GRAPH_NOT_SUPPORTED ? FVLM_ERROR_UNSUPPORTED : FVLM_ERROR_DEVICE,
                "cuDNN %s: %s", what, error.get_message().c_str());
}

void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw Failure(FVLM_ERROR_DEVICE, "%s: %s", what, cudnnGetErrorString(status));
}

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// The uid of a tensor in the graph. cuDNN does not allow 0.
int64_t uid_of(int slot) {
  return slot + 1;
}

// Creates the tensors of one graph and records which slots it uses.
class GraphBuilder {
 public:
  GraphBuilder(fe::graph::Graph& graph, const GraphShape& shape, std::vector<int>& used)
      : graph_(graph), shape_(shape), used_(used) {}

  Tensor rows(int slot, int index) { return graph_.tensor(describe(fe::graph::Tensor_attributes(), slot, index)); }
  void output(const Tensor& tensor, int slot, int index) {
    describe(*tensor, slot, index);
    tensor->set_output(true);
  }
  Tensor lengths(int slot) {
    use(slot);
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid_of(slot))
                             .set_dim({shape_.segments, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }
  template <class Attributes>
  Attributes& lse(Attributes& attributes) {
    use(slot_lse);
    attributes.set_uid(uid_of(slot_lse))
        .set_dim({shape_.segments, shape_.heads_q, shape_.max_q, 1})
        .set_stride({shape_.heads_q * shape_.max_q, shape_.max_q, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    return attributes;
  }

 private:
  void use(int slot) { used_.push_back(slot); }

  // index: position in GraphShape::layout
  fe::graph::Tensor_attributes& describe(fe::graph::Tensor_attributes&& tensor, int slot, int index) {
    held_ = std::move(tensor);
    return describe(held_, slot, index);
  }
  fe::graph::Tensor_attributes& describe(fe::graph::Tensor_attributes& tensor, int slot, int index) {
    const bool is_key_side = index == 1 || index == 2 || index == 6 || index == 7;
    const int64_t heads = is_key_side ? shape_.heads_kv : shape_.heads_q;
    const int64_t max_rows = is_key_side ? shape_.max_kv : shape_.max_q;
    const Layout& layout = shape_.layout[index];
    const int64_t segment_stride =
        shape_.uniform ? (is_key_side ? shape_.tokens_kv : shape_.tokens_q) / shape_.segments : max_rows;
    use(slot);
    tensor.set_uid(uid_of(slot))
        .set_dim({shape_.segments, heads, max_rows, shape_.head_dim})
        .set_stride({segment_stride * layout.row_stride, layout.head_stride, layout.row_stride, 1});
    if (shape_.uniform) return tensor;
    const int offsets = slot_offsets + index;
    use(offsets);
    const Tensor ragged = graph_.tensor(fe::graph::Tensor_attributes()
                                            .set_uid(uid_of(offsets))
                                            .set_dim({shape_.segments + 1, 1, 1, 1})
                                            .set_stride({1, 1, 1, 1})
                                            .set_data_type(fe::DataType_t::INT32));
    return tensor.set_ragged_offset(ragged);
  }

  fe::graph::Graph& graph_;
  const GraphShape& shape_;
  std::vector<int>& used_;
  fe::graph::Tensor_attributes held_;
};

template <class Attributes>
void set_options(Attributes& attributes, const GraphShape& s, GraphBuilder& builder) {
  attributes.set_attn_scale(s.scale);
  if (!s.uniform)
    attributes.set_padding_mask(true)
        .set_seq_len_q(builder.lengths(slot_lengths_q))
        .set_seq_len_kv(builder.lengths(slot_lengths_kv));
  if (!s.causal) return;
  // With as many keys as queries both alignments mean the same, but cuDNN's backward takes 1.6 times as long with
  // BOTTOM_RIGHT.
  const bool square = s.uniform && s.max_q == s.max_kv;
  attributes.set_diagonal_alignment(square ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
      .set_diagonal_band_right_bound(0);
  if (s.window > 0) attributes.set_diagonal_band_left_bound(s.window);
}

void add_forward(fe::graph::Graph& graph, const GraphShape& s, GraphBuilder& builder) {
  fe::graph::SDPA_attributes attributes;
  attributes.set_name("attention").set_generate_stats(s.lse);
  set_options(attributes, s, builder);
  const Tensor q = builder.rows(slot_q, 0), k = builder.rows(slot_k, 1), v = builder.rows(slot_v, 2);
  const auto [out, lse] = graph.sdpa(q, k, v, attributes);
  builder.output(out, slot_out, 3);
  if (s.lse) builder.lse(*lse).set_output(true);
}

void add_backward(fe::graph::Graph& graph, const GraphShape& s, GraphBuilder& builder) {
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward").set_deterministic_algorithm(s.deterministic);
  if (!s.uniform && s.head_dim % 16 == 0)
    attributes.set_max_total_seq_len_q(s.tokens_q).set_max_total_seq_len_kv(s.tokens_kv);
  set_options(attributes, s, builder);
  const Tensor q = builder.rows(slot_q, 0), k = builder.rows(slot_k, 1), v = builder.rows(slot_v, 2);
  const Tensor out = builder.rows(slot_out, 3), d_out = builder.rows(slot_d_out, 4);
  fe::graph::Tensor_attributes saved;
  const Tensor lse = graph.tensor(builder.lse(saved));
  const auto [d_q, d_k, d_v] = graph.sdpa_backward(q, k, v, out, d_out, lse, attributes);
  builder.output(d_q, slot_d_q, 5);
  builder.output(d_k, slot_d_k, 6);
  builder.output(d_v, slot_d_v, 7);
}

} // namespace

bool GraphShape::operator<(const GraphShape& other) const {
  const auto key = [](const GraphShape& s) {
    return std::tie(s.backward, s.lse, s.deterministic, s.causal, s.bfloat, s.uniform, s.heads_q, s.heads_kv,
                    s.head_dim, s.segments, s.max_q, s.max_kv, s.tokens_q, s.tokens_kv, s.window, s.scale);
  };
  if (key(*this) < key(other) || key(other) < key(*this)) return key(*this) < key(other);
  for (int i = 0; i < 8; ++i)
    if (const Layout& a = layout[i], &b = other.layout[i];
        a.row_stride != b.row_stride || a.head_stride != b.head_stride)
      return std::tie(a.row_stride, a.head_stride) < std::tie(b.row_stride, b.head_stride);
  return false;
}

Support supports_ragged_segments(fvlm_device device) {
  constexpr std::size_t first_elsewhere = 91801; // 9.18.1
  const bool anyway = check_device(device, 9, 0).score > 0 && check_device(device, 11, 0).score == 0;
  if (anyway || cudnnGetVersion() >= first_elsewhere) return accept(1, "cuDNN %zu", cudnnGetVersion());
  return refuse("cuDNN %zu has ragged segments on sm_90 and sm_100 alone, and from 91801 (9.18.1) on elsewhere",
                cudnnGetVersion());
}

Cudnn::Cudnn() {
  check(cudnnCreate(&handle_), "cudnnCreate");
}
Cudnn::~Cudnn() {
  (void)cudnnDestroy(handle_);
}
void Cudnn::set_stream(void* stream) const {
  check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
}

struct Graph::State {
  fe::graph::Graph graph;
  std::vector<int> slots; // the used ones, in the order in which cuDNN takes their pointers
};

Graph::Graph(const Cudnn& cudnn, const GraphShape& shape) : state_(std::make_unique<State>()) {
  fe::graph::Graph& graph = state_->graph;
  graph.set_io_data_type(shape.bfloat ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  GraphBuilder builder(graph, shape, state_->slots);
  if (shape.backward)
    add_backward(graph, shape, builder);
  else
    add_forward(graph, shape, builder);
  check(graph.build(cudnn.get(), {fe::HeurMode_t::A}), shape.backward ? "attention backward" : "attention");
  std::sort(state_->slots.begin(), state_->slots.end());
}

Graph::~Graph() = default;

std::uint64_t Graph::workspace() const {
  return static_cast<std::uint64_t>(std::max<int64_t>(state_->graph.get_workspace_size(), 0));
}

void Graph::run(const Cudnn& cudnn, void* const (&slots)[slot_count], void* workspace) const {
  void* pointers[slot_count];
  int count = 0;
  for (const int slot : state_->slots) pointers[count++] = slots[slot];
  check(state_->graph.execute(cudnn.get(), pointers, count, workspace), "execute");
}

} // namespace fvlm::plugins
