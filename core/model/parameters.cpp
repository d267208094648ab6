#include "model/parameters.h"

#include "base/error.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fvlm::model {

namespace {

// Of the weights of a block, which are quantized alike; null where they are not quantized.
const PackedScheme* scheme_of(const ParameterBlock& block, const ArenaOptions& options) {
  if (!options.scheme_of) return nullptr;
  const PackedScheme* scheme = options.scheme_of(block.front());
  for (size_t i = 1; i < block.size(); ++i)
    if (options.scheme_of(block[i]) != scheme)
      throw Error(ErrorKind::data, "{} and {} are read as one matrix, and are not quantized alike", block.front().name,
                  block[i].name)
          .advise("quantize both in the same scheme, or neither");
  return scheme;
}

// Rows and columns behind the matrix of a block, for its adapters.
int64_t room_of(const ParameterBlock& block, const ArenaOptions& options) {
  if (!options.rank_of || block.front().shape.size() != 2) return 0;
  int64_t ranks = 0;
  for (const ParameterSpec& spec : block) ranks += options.rank_of(spec);
  constexpr int64_t multiple = 8; // so that rows of 16-bit numbers are a multiple of 16 bytes
  return (ranks + multiple - 1) / multiple * multiple;
}

// Of a block with this room, as one matrix.
ParameterSpec joined_spec(const ParameterBlock& block, int64_t room) {
  int64_t rows = room;
  for (const ParameterSpec& spec : block) rows += spec.shape[0];
  return {{}, {rows, block.front().shape[1] + room}};
}

} // namespace

namespace {

// Whether the values of a block are those of the other model.
bool is_shared(const ParameterBlock& block, const ArenaOptions& options) {
  if (!options.shares_base_with) return false;
  if (options.is_shared) return std::ranges::all_of(block, options.is_shared);
  return options.shares_base_with->at(block.front().name).in_base;
}

} // namespace

// There is a buffer for what trains, so that it lies together, and one for what does not, or two: one in bfloat16.
struct Parameters::Place {
  int64_t begin;
  bool trains;
  const PackedScheme* scheme; // of a quantized block, which is in none of them
  bool shared = false;        // and so is one that another model has
  int64_t room = 0;           // of a frozen block below adapters
  bool is_bfloat16 = false;
};

Parameters::Parameters(const std::vector<ParameterBlock>& blocks, const ArenaOptions& options) {
  std::vector<Place> places;
  int64_t trained = 0, fixed = 0, fixed_bfloat16 = 0;
  for (const ParameterBlock& block : blocks) {
    if (const PackedScheme* scheme = scheme_of(block, options)) {
      places.push_back({0, false, scheme});
      continue;
    }
    if (is_shared(block, options)) {
      places.push_back({0, false, nullptr, true});
      continue;
    }
    const bool trains =
        std::ranges::any_of(block, [&](const ParameterSpec& spec) { return !spec.is_fixed && options.trains(spec); });
    const int64_t room = trains ? 0 : room_of(block, options);
    const bool is_bfloat16 =
        !trains && room == 0 && options.is_bfloat16 && std::ranges::all_of(block, options.is_bfloat16);
    int64_t& end = trains ? trained : is_bfloat16 ? fixed_bfloat16 : fixed;
    places.push_back({end, trains, nullptr, false, room, is_bfloat16});
    end += padded_elements(room > 0 ? ParameterBlock{joined_spec(block, room)} : block);
  }
  const auto on = at::TensorOptions().device(options.device);
  const Parameters* other = options.shares_values_with;
  trained_ = other ? other->trained_ : at::zeros({trained}, on.dtype(options.dtype));
  fixed_ = other ? other->fixed_ : at::empty({fixed}, on.dtype(options.dtype));
  fixed_bfloat16_ = other ? other->fixed_bfloat16_ : at::empty({fixed_bfloat16}, on.dtype(at::kBFloat16));
  divide_gradients(blocks, places);
  if (options.buffers_gradients) buffer_gradients(blocks, places, on.dtype(options.gradient_dtype));
  gradients_ = at::zeros({options.buffers_gradients ? 0 : trained}, on.dtype(options.gradient_dtype));

  auto bucket = buckets_.rbegin(); // of the block
  for (size_t index = 0; index < blocks.size(); ++index) {
    auto [begin, trains, scheme, shared, room, is_bfloat16] = places[index];
    if (scheme) {
      add_packed(blocks[index], *scheme, options);
      continue;
    }
    if (room > 0) {
      add_joined(blocks[index], room, begin, !other);
      continue;
    }
    const at::Tensor& buffer = trains ? trained_ : is_bfloat16 ? fixed_bfloat16_ : fixed_;
    at::Tensor gradients;
    if (trains) {
      if (begin >= bucket->begin + bucket->length) ++bucket;
      gradients = gradients_of(blocks[index], begin, *bucket);
    }
    int64_t first = 0;
    for (const ParameterSpec& spec : blocks[index]) {
      const int64_t size = spec.elements();
      ops::Parameter& parameter = all_.emplace_back();
      parameter.name = spec.name;
      parameter.value = shared ? options.shares_base_with->at(spec.name).value
                               : buffer.narrow(0, begin + first, size).view(spec.shape);
      if (trains) {
        parameter.gradient = gradients.narrow(0, first, size).view(spec.shape);
        if (bucket->buffer && gradients.is_alias_of(bucket->buffer->values())) parameter.buffer = bucket->buffer.get();
        bucket->parameters.push_back(&parameter);
      }
      first += size;
      by_name_[spec.name] = &parameter;
    }
  }
  for (const ParameterBlock& block : blocks)
    for (const ParameterSpec& spec : block)
      if (spec.pairs.rotated > 0)
        by_name_.at(spec.name)->rows_in_file = at::tensor(spec.pairs.rows_in_file(spec.shape[0]), at::kLong);
}

// The one model that has the memory writes its adapters beside the weights: others may compute at the same time.
void Parameters::add_joined(const ParameterBlock& block, int64_t room, int64_t begin, bool is_own) {
  const ParameterSpec whole = joined_spec(block, room);
  const at::Tensor joined = fixed_.narrow(0, begin, whole.elements()).view(whole.shape);
  const int64_t columns = whole.shape[1] - room;
  if (is_own) {
    joined.narrow(1, columns, room).zero_();
    joined.narrow(0, whole.shape[0] - room, room).zero_();
  }
  int64_t row = 0;
  for (const ParameterSpec& spec : block) {
    ops::Parameter& parameter = all_.emplace_back();
    parameter.name = spec.name;
    parameter.value = joined.narrow(0, row, spec.shape[0]).narrow(1, 0, columns);
    if (is_own) parameter.joined = joined;
    row += spec.shape[0];
    by_name_[spec.name] = &parameter;
  }
}

// Large enough that an operation's latency is small beside the time that it sends for, and small enough that the last
// one, which nothing hides, is a small part. A block that is larger has a bucket of its own.
void Parameters::divide_gradients(const std::vector<ParameterBlock>& blocks, const std::vector<Place>& places) {
  constexpr int64_t least = int64_t{1} << 10, enough = int64_t{8} << 20; // elements
  const int64_t trained = trained_.numel(), most = std::clamp(trained / 8, least, std::max(enough, trained / 64));
  for (size_t index = blocks.size(); index-- > 0;) {
    if (!places[index].trains) continue;
    const int64_t size = padded_elements(blocks[index]);
    if (buckets_.empty() || buckets_.back().length + size > most) buckets_.emplace_back();
    buckets_.back().begin = places[index].begin;
    buckets_.back().length += size;
  }
}

namespace {

bool is_vector(const ParameterBlock& block) {
  return block.front().shape.size() < 2;
}

} // namespace

void Parameters::buffer_gradients(const std::vector<ParameterBlock>& blocks, const std::vector<Place>& places,
                                  const at::TensorOptions& options) {
  int64_t vectors = 0;
  for (size_t index = 0; index < blocks.size(); ++index)
    if (places[index].trains && is_vector(blocks[index])) vectors += padded_elements(blocks[index]);
  vector_gradients_ = at::zeros({vectors}, options);
  for (GradientBucket& bucket : buckets_) bucket.buffer = std::make_shared<ops::GradientBuffer>(bucket.length, options);
}

// Where they lie, flat.
at::Tensor Parameters::gradients_of(const ParameterBlock& block, int64_t begin, GradientBucket& bucket) {
  const int64_t size = padded_elements(block);
  if (!bucket.buffer) return gradients_.narrow(0, begin, size);
  const at::Tensor inside = bucket.buffer->values().narrow(0, begin - bucket.begin, size);
  if (!is_vector(block)) return inside;
  const at::Tensor own = vector_gradients_.narrow(0, vectors_end_, size);
  vectors_end_ += size;
  bucket.vectors.emplace_back(own, inside);
  return own;
}

// Codes and scales of a block lie in a tensor each, so that the weights can be read as one.
void Parameters::add_packed(const ParameterBlock& block, const PackedScheme& scheme, const ArenaOptions& options) {
  const at::Device device = options.device;
  const Parameters* other = options.shares_values_with ? options.shares_values_with : options.shares_base_with;
  const int64_t cols = block.front().shape[1];
  int64_t rows = 0;
  for (const ParameterSpec& spec : block) rows += spec.shape[0];
  const auto on = at::TensorOptions().device(device);
  const bool is_int8 = scheme.bits == 8; // the shapes and types of fvlm/quantizer.h
  const int64_t own_rows = other ? 0 : rows;
  const at::Tensor codes = at::empty({own_rows, scheme.code_bytes(cols)}, on.dtype(is_int8 ? at::kChar : at::kByte)),
                   scales = is_int8 ? at::empty({own_rows}, on.dtype(at::kFloat))
                                    : at::empty({own_rows, scheme.groups(cols)}, on.dtype(at::kFloat));
  int64_t begin = 0;
  for (const ParameterSpec& spec : block) {
    ops::Parameter& parameter = all_.emplace_back();
    parameter.name = spec.name;
    parameter.value = at::empty({1, 1}, at::TensorOptions().device(at::kMeta)).expand(spec.shape); // a shape
    parameter.packed = other
                           ? other->at(spec.name).packed
                           : std::vector{codes.narrow(0, begin, spec.shape[0]), scales.narrow(0, begin, spec.shape[0])};
    parameter.scheme = scheme.name;
    begin += spec.shape[0];
    by_name_[spec.name] = &parameter;
  }
}

ops::Parameter& Parameters::at(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) throw Error(ErrorKind::internal, "the model has no parameter of this name").at(name);
  return *found->second;
}

ops::Weight Parameters::fused(const std::vector<std::string>& names) {
  std::vector<ops::Parameter*> parts;
  parts.reserve(names.size());
  for (const std::string& name : names) parts.push_back(&at(name));
  return ops::Weight(std::move(parts));
}

int64_t Parameters::element_count() const {
  int64_t count = 0;
  for (const ops::Parameter& parameter : all_) count += parameter.value.numel();
  return count;
}

void Parameters::reset_gradients() {
  for (ops::Parameter& parameter : all_)
    parameter.has_gradient = parameter.on_side_stream = parameter.is_complete = false;
}

void Parameters::zero_missing_gradients() {
  for (ops::Parameter& parameter : all_)
    if (parameter.gradient.defined() && !parameter.has_gradient) parameter.gradient.zero_();
}

std::vector<bool> Parameters::gradient_flags() const {
  std::vector<bool> which;
  for (const ops::Parameter& parameter : all_) which.push_back(parameter.has_gradient);
  return which;
}

void Parameters::set_gradient_flags(const std::vector<bool>& which) {
  for (size_t i = 0; i < all_.size(); ++i) all_[i].has_gradient = which[i];
}

void Parameters::add_gradients(Parameters& other) {
  zero_missing_gradients();
  other.zero_missing_gradients();
  gradients_.add_(other.gradients_);
  for (ops::Parameter& parameter : all_) parameter.has_gradient = parameter.gradient.defined();
}

} // namespace fvlm::model
