#include "model/encoder/cell_vit.h"

#include "base/error.h"
#include "model/encoder/learned_lines.h"
#include "ops/gates.h"
#include "ops/pointwise.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace fvlm::model {
namespace {

// int32 [2, patches]: the line and the column of each patch in its image.
constexpr const char* positions_map = "encoder.positions";
constexpr const char* around_map = "encoder.patches_around"; // see CellVit::patches_around()
// int64 [slots]: the cell at each place of the windows' order; and int64 [patches]: where each patch is in that order.
constexpr const char *cells_map = "encoder.window_cells", *patches_map = "encoder.window_places";
constexpr const char* windows_map = "encoder.windows";                       // segments
constexpr const char* squares_of_patches_map = "encoder.squares_of_patches"; // segments that become one row each
// int64 [slots * frames of a step]: the squares that each cell shows, in packs with videos.
constexpr const char* squares_map = "encoder.squares";
// int64 and float32 [patches, neighbors]: the learned positions around each patch, and their shares. Antialiased: the
// shares of all of them, float32 [patches, positions].
constexpr const char *learned_map = "encoder.learned_positions", *shares_map = "encoder.position_shares";

// By the line and by the column of a patch, which share a head's frequencies evenly.
ops::Rotary rotary_of(const VisionConfig& config, const CellVit::Traits& traits, const at::Device& device) {
  const int64_t half = config.head_dim() / 2, own = half / 2;
  const at::Tensor axes = at::zeros({2, half}, at::kDouble);
  auto frequencies = axes.accessor<double, 2>();
  for (int64_t i = 0; i < own; ++i) {
    const auto frequency = [&](double place) {
      return std::pow(config.rope_theta, -place / static_cast<double>(half));
    };
    const int64_t first = traits.normed_branches ? 1 : 0; // axis
    frequencies[first][i] = frequency(static_cast<double>(2 * i));
    frequencies[1 - first][own + i] = frequency(static_cast<double>(2 * i + (traits.frequencies_alternate ? 1 : 0)));
  }
  ops::Rotary rotary{.dimensions = config.head_dim()};
  rotary.axes = axes.to(device);
  return rotary;
}

// The cells of images in the order of their windows of side x side cells, those at the margins maybe smaller, and how
// many each window has.
struct Windows {
  std::vector<int64_t> cells, lengths;

  void add(const ImageGrid& image, int64_t side) {
    for (int64_t step = 0; step < image.steps; ++step) add_step(image, side);
  }

 private:
  void add_step(const ImageGrid& image, int64_t side) {
    const int64_t first = std::ssize(cells);
    for (int64_t top = 0; top < image.rows; top += side)
      for (int64_t left = 0; left < image.columns; left += side) {
        const int64_t bottom = std::min(top + side, image.rows), right = std::min(left + side, image.columns);
        for (int64_t row = top; row < bottom; ++row)
          for (int64_t column = left; column < right; ++column) cells.push_back(first + row * image.columns + column);
        lengths.push_back((bottom - top) * (right - left));
      }
  }
};

// The learned positions around each patch, those of padding with shares of 0.
struct LearnedPositions {
  int64_t first, neighbors; // of the table's rows; of each patch
  std::vector<int64_t> index = {};
  std::vector<float> shares = {};

  void add(const Between& line, const Between& column, int64_t side) {
    for (size_t i = 0; i < line.shares.size(); ++i)
      for (size_t j = 0; j < column.shares.size(); ++j) {
        index.push_back(first + line.neighbors[i] * side + column.neighbors[j]);
        shares.push_back(line.shares[i] * column.shares[j]);
      }
  }
  void add_to(PackMaps& maps, int64_t rows, const at::Device& device) {
    index.resize(static_cast<size_t>(rows * neighbors), 0);
    shares.resize(static_cast<size_t>(rows * neighbors), 0);
    maps.tensors[learned_map] = at::tensor(index, at::kLong).view({rows, neighbors}).to(device);
    maps.tensors[shares_map] = at::tensor(shares, at::kFloat).view({rows, neighbors}).to(device);
  }
};

// The linears that one product reads together.
Operations::Layer fused(Parameters& parameters, const std::string& stem, const std::vector<const char*>& names,
                        bool biases) {
  const auto all = [&](const char* suffix) {
    std::vector<std::string> full;
    full.reserve(names.size());
    for (const char* name : names) full.push_back(stem + name + suffix);
    return parameters.fused(full);
  };
  return {all(".weight"), biases ? all(".bias") : ops::Weight()};
}

} // namespace

CellVit::CellVit(const VisionConfig& config, const Traits& traits, Parameters& parameters)
    : config_(config), is_gated_(traits.up.size() == 2), rotates_(traits.rotates), channels_last_(traits.channels_last),
      norms_branches_(traits.normed_branches),
      patch_weight_(parameters.weight("vision." + std::string(traits.patch) + ".weight").as_matrix()),
      rotary_(rotary_of(config, traits, patch_weight_.value().device())) {
  const std::string vision = "vision.";
  const auto norm = [&](const std::string& stem) -> VitNorm {
    return {parameters.weight(stem + ".weight"), config.rms_norm ? ops::Weight() : parameters.weight(stem + ".bias"),
            config.layer_norm_eps};
  };
  if ((traits.position && config.position_embedding_size == 0) || traits.patch_bias)
    patch_bias_ = parameters.weight(vision + traits.patch + ".bias");
  if (config.position_embedding_size > 0)
    position_ = parameters.weight(vision + traits.position).as_rows();
  else if (traits.position)
    position_ = parameters.weight(vision + traits.position + ".weight");
  if (traits.input_norm) input_norm_ = norm(vision + traits.input_norm);
  if (traits.output_norm) output_norm_ = norm(vision + traits.output_norm);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string stem = fmt::format("{}{}{}.", vision, traits.layers, i);
    // Each by itself, or as one product reads them together.
    const auto linears = [&](const std::vector<const char*>& names) {
      std::vector<Linear> all;
      if (!config.use_clipped_linears) return std::vector{Linear{fused(parameters, stem, names, traits.biases)}};
      for (const char* name : names) {
        Linear& linear = all.emplace_back(Linear{fused(parameters, stem, {name}, traits.biases)});
        const std::string module = stem + std::string(name).substr(0, std::string(name).rfind('.') + 1);
        for (size_t bound = 0; bound < linear_bounds.size(); ++bound)
          linear.bounds[bound] = parameters.weight(module + linear_bounds[bound]).value();
      }
      return all;
    };
    const bool is_whole = std::ranges::count(config.fullatt_block_indexes, i) > 0;
    const Traits::Convolution* convolution = config.has_convolution(i) ? traits.convolution : nullptr;
    Layer& layer =
        layers_.emplace_back(Layer{norm(stem + traits.before_attention), norm(stem + traits.before_mlp),
                                   linears(convolution ? std::vector{convolution->in} : traits.qkv),
                                   linears({convolution ? convolution->out : traits.out})[0], linears(traits.up),
                                   linears({traits.down})[0], has_windows() && !is_whole});
    if (convolution) {
      layer.taps.weight = parameters.weight(stem + convolution->taps + ".weight");
    } else if (traits.q_norm) {
      layer.q_norm = parameters.weight(stem + traits.q_norm + ".weight");
      layer.k_norm = parameters.weight(stem + traits.k_norm + ".weight");
    }
    if (const Traits::NormedBranches* names = traits.normed_branches) {
      layer.after_attention = norm(stem + names->after_attention);
      layer.after_mlp = norm(stem + names->after_mlp);
    }
  }
  if (traits.merger) add_merger(vision + traits.merger, traits, parameters);
}

void CellVit::add_merger(const std::string& stem, const Traits& traits, Parameters& parameters) {
  const auto norm = [&](const char* name) -> VitNorm {
    return {parameters.weight(stem + name + ".weight"), parameters.weight(stem + name + ".bias"),
            config_.layer_norm_eps};
  };
  const auto linear = [&](const char* name) { return fused(parameters, stem, {name}, true); };
  merger_ = {{.before_attention = norm("layer_norm1"),
              .before_mlp = {},
              .qkv = {Linear{fused(parameters, stem, traits.qkv, true)}},
              .out = Linear{linear(traits.out)},
              .up = {},
              .down = {},
              .attends_to_windows = false},
             norm("pre_norm"),
             linear("linear_1"),
             linear("linear_2")};
}

void CellVit::add_maps(PackMaps& maps, const CellLayout& layout) const {
  const int64_t side = config_.spatial_merge_size, patches = side * side, rows = layout.slots * patches,
                most = config_.position_embedding_size;
  for (const ImageGrid& image : layout.images)
    if (most > 0 && std::max(image.rows, image.columns) * side > most)
      throw Error(ErrorKind::data, "an image of {} x {} patches is longer than the {} positions of the encoder",
                  image.columns * side, image.rows * side, most)
          .advise("crop or pad images that are so long and narrow");
  std::vector<int32_t> lines, columns;
  const int64_t neighbors = line_neighbors(config_);
  LearnedPositions learned{config_.position_class ? 1 : 0, neighbors * neighbors};
  const bool has_neighbors = has_learned_positions() && !config_.position_antialias;
  for (const ImageGrid& image : layout.images) {
    std::vector<Between> at_line, at_column;
    if (has_neighbors) {
      at_line = learned_line(image.rows * side, config_);
      at_column = learned_line(image.columns * side, config_);
    }
    for (int64_t patch = 0; patch < image.cells() * patches; ++patch) {
      const int64_t cell = patch / patches % image.step_cells();
      const auto [inner_line, inner_column] = place_in_cell(patch % patches);
      const int64_t line = cell / image.columns * side + inner_line,
                    column = cell % image.columns * side + inner_column;
      lines.push_back(static_cast<int32_t>(line));
      columns.push_back(static_cast<int32_t>(column));
      if (has_neighbors)
        learned.add(at_line[static_cast<size_t>(line)], at_column[static_cast<size_t>(column)],
                    config_.position_side());
    }
  }
  if (config_.position_antialias)
    maps.tensors[shares_map] = antialiased_shares(layout, side, config_.position_side()).to(layout.device);
  else if (has_learned_positions())
    learned.add_to(maps, rows, layout.device);
  lines.resize(static_cast<size_t>(rows), 0);
  columns.resize(static_cast<size_t>(rows), 0);
  if (merger_) {
    const int64_t square = config_.merged_side() * config_.merged_side();
    maps.segments[squares_of_patches_map] = segments_of(std::vector(static_cast<size_t>(rows / square), square),
                                                        rows / square, rows, square, layout.device);
    maps.segments[squares_of_patches_map].positions = at::Tensor();
  }
  at::Tensor positions = at::stack({at::tensor(lines, at::kInt), at::tensor(columns, at::kInt)}),
             squares = squares_of(layout);
  if (has_windows()) {
    Windows windows;
    for (const ImageGrid& image : layout.images) windows.add(image, window_side());
    const int64_t used = std::ssize(windows.cells);
    windows.cells.resize(static_cast<size_t>(layout.slots));
    std::iota(windows.cells.begin() + used, windows.cells.end(), used);
    const at::Tensor cells = at::tensor(windows.cells, at::kLong);
    const at::Tensor order = (cells.unsqueeze(1) * patches + at::arange(patches)).flatten();
    positions = positions.index_select(1, order);
    if (squares.defined()) squares = squares.index_select(0, cells);
    maps.tensors[cells_map] = cells.to(layout.device);
    maps.tensors[patches_map] = order.argsort().to(layout.device);
    const int64_t longest = window_side() * window_side() * patches;
    for (int64_t& length : windows.lengths) length *= patches;
    maps.segments[windows_map] = segments_of(windows.lengths, layout.slots, rows, longest, layout.device);
    maps.segments[windows_map].positions = at::Tensor();
  }
  maps.tensors[positions_map] = positions.to(layout.device);
  if (!config_.conv_layers.empty()) maps.tensors[around_map] = patches_around(layout).to(layout.device);
  if (squares.defined()) maps.tensors[squares_map] = squares.flatten().to(layout.device);
}

Value CellVit::forward(Tape& tape, Operations& ops, const at::Tensor& frames, const Segments& images,
                       const PackMaps& maps) const {
  return forward_with_layers(tape, ops, frames, images, maps)[0];
}

Value CellVit::embedded(Tape& tape, Operations& ops, const at::Tensor& frames, const PackMaps& maps) const {
  const int64_t own = patch_weight_.value().size(1);
  at::Tensor cells = cells_of(frames, maps);
  if (merger_) { // the squares that they consist of, line by line
    const int64_t side = config_.merged_side() * config_.patch_size;
    cells = cells.unflatten(3, {-1, side}).unflatten(2, {-1, side}).permute({0, 2, 4, 1, 3, 5}).flatten(0, 2);
  }
  const Value pixels(
      patches_of(cells, config_.patch_size, ops.options().dtype, ops.padded(own), config_.temporal_patch_size));
  if (channels_last_) {
    const at::Tensor numbers = pixels.data.narrow(1, 0, own);
    numbers.copy_(numbers.unflatten(1, {config_.num_channels, -1}).transpose(1, 2).flatten(1));
  }
  Value x = ops.linear(tape, pixels, ops.padded(tape, patch_weight_), patch_bias_);
  if (input_norm_.weight.defined()) x = input_norm_(tape, ops, x);
  if (const int64_t lines = config_.position_embedding_size; lines > 0) { // a table of columns, and then one of lines
    const at::Tensor at_line = maps.tensors.at(positions_map).to(at::kLong);
    const at::Tensor index = at::stack({at_line.select(0, 1), at_line.select(0, 0) + lines}, 1);
    x = ops::add(tape, x, ops::mix_rows_of(tape, position_, index, at::ones_like(index), ops.options().dtype));
  } else if (config_.position_antialias)
    x = ops::add(tape, x, ops::mix_rows_of(tape, position_, maps.tensors.at(shares_map), ops.options().dtype));
  else if (has_learned_positions())
    x = ops::add(tape, x,
                 ops::mix_rows_of(tape, position_, maps.tensors.at(learned_map), maps.tensors.at(shares_map),
                                  ops.options().dtype));
  return x;
}

std::vector<Value> CellVit::forward_with_layers(Tape& tape, Operations& ops, const at::Tensor& frames,
                                                const Segments& images, const PackMaps& maps) const {
  const int64_t side = config_.image_size;
  if (frames.size(2) != side || frames.size(3) != side)
    throw Error(ErrorKind::data,
                "frames of {} x {} pixels do not fit the encoder, whose images consist of cells of {} x {}",
                frames.size(2), frames.size(3), side, side)
        .advise("set the model's image_size to {}: images themselves may have any size", side);
  const Tape::LightCheckpointing lean(tape, recompute.light);
  Value x = embedded(tape, ops, frames, maps);
  std::vector<Value> out(1);
  const Segments windows = has_windows() ? maps.segments.at(windows_map) : Segments();
  const Places places = places_of(maps);
  const auto merging = static_cast<size_t>(merger_ ? config_.insert_layer_id : std::ssize(layers_));
  const Segments squares = merger_ ? maps.segments.at(squares_of_patches_map) : Segments();
  const Segments unmerged = merger_ ? unmerged_images(images) : images;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const Segments& segments = layer.attends_to_windows ? windows : i <= merging ? unmerged : images;
    const auto block = [this, &ops, &layer, segments, places, squares,
                        merges = i == merging](Tape& inner, const std::vector<Value>& in) {
      const Value y = pass(inner, ops, layer, in[0], segments, places);
      return std::vector<Value>{merges ? merged(inner, ops, y, squares) : y};
    };
    x = (recompute.layer(static_cast<int64_t>(i)) ? ops::checkpointed(tape, {x}, block) : block(tape, {x}))[0];
    if (std::ranges::count(config_.deepstack_visual_indexes, i) > 0) out.push_back(x);
  }
  if (output_norm_.weight.defined()) x = output_norm_(tape, ops, x);
  out[0] = has_windows() ? ops::gather_rows(tape, x, maps.tensors.at(patches_map)) : x;
  return out;
}

std::array<int64_t, 2> CellVit::place_in_cell(int64_t patch) const {
  const int64_t square = config_.merged_side(), across = config_.spatial_merge_size / square,
                place = patch / (square * square), inner = patch % (square * square);
  return {place / across * square + inner / square, place % across * square + inner % square};
}

CellVit::Places CellVit::places_of(const PackMaps& maps) const {
  Places places{maps.tensors.at(positions_map), {}};
  if (!config_.conv_layers.empty()) places.squares = ops::PatchSquares(maps.tensors.at(around_map));
  return places;
}

at::Tensor CellVit::patches_around(const CellLayout& layout) const {
  const int64_t side = config_.spatial_merge_size, patches = side * side, reach = config_.conv_kernel_size / 2;
  std::vector<int64_t> around;
  int64_t first = 0; // patch of the step
  for (const ImageGrid& image : layout.images)
    for (int64_t step = 0; step < image.steps; ++step, first += image.step_cells() * patches)
      for (int64_t patch = 0; patch < image.step_cells() * patches; ++patch) {
        const int64_t cell = patch / patches;
        const auto [inner_line, inner_column] = place_in_cell(patch % patches);
        const int64_t own_line = cell / image.columns * side + inner_line,
                      own_column = cell % image.columns * side + inner_column;
        for (int64_t line = own_line - reach; line <= own_line + reach; ++line)
          for (int64_t column = own_column - reach; column <= own_column + reach; ++column) {
            const bool is_inside =
                line >= 0 && column >= 0 && line < image.rows * side && column < image.columns * side;
            around.push_back(is_inside ? first + (line / side * image.columns + column / side) * patches +
                                             line % side * side + column % side
                                       : -1);
          }
      }
  const int64_t rows = layout.slots * patches, offsets = config_.conv_kernel_size * config_.conv_kernel_size;
  around.resize(static_cast<size_t>(rows * offsets), -1);
  return at::tensor(around, at::kLong).view({rows, offsets}).t().contiguous();
}

// The segments of images whose squares of patches have not been merged.
Segments CellVit::unmerged_images(const Segments& images) const {
  const int64_t square = config_.merged_side() * config_.merged_side();
  Segments out = images;
  out.cu_seqlens = images.cu_seqlens * square;
  out.positions = at::Tensor();
  out.max_length *= square;
  return out;
}

Value CellVit::merged(Tape& tape, Operations& ops, const Value& x, const Segments& squares) const {
  const Layer& layer = merger_->layer;
  const Value read = attend(tape, ops, layer, layer.before_attention(tape, ops, x), squares, {}),
              attended = layer.out(tape, ops, read, x);
  const int64_t square = config_.merged_side() * config_.merged_side();
  return ops.gelu_mlp(tape, merger_->norm(tape, ops, ops::side_by_side(tape, attended, square)), merger_->first,
                      merger_->second, ops::mean_of_rows(tape, attended, square), nullptr, ops::Gelu::tanh);
}

double CellVit::image_flops(const ImageGrid& image, bool trains) const {
  const int64_t width = config_.hidden_size, patches = config_.spatial_merge_size * config_.spatial_merge_size;
  const auto rows = static_cast<double>(image.cells() * patches),
             rows_of_step = static_cast<double>(image.step_cells() * patches);
  Windows windows;
  if (has_windows()) windows.add(image, window_side());
  // Of all layers; rows that are merged count as their part of the patches.
  double pairs = 0, row = 0;
  const int64_t keys = config_.key_heads() * config_.head_dim();
  const double mlp_of_row = (is_gated_ ? 3 : 2) * product_flops(width, config_.intermediate_size),
               attention_of_row = 2 * product_flops(width, width) + 2 * product_flops(width, keys),
               convolution_of_row = 4 * product_flops(width, width);
  int64_t index = 0;
  const auto merged = static_cast<double>(config_.merged_side() * config_.merged_side());
  for (const Layer& layer : layers_) {
    const double share = merger_ && index++ > config_.insert_layer_id ? 1 / merged : 1;
    row += share * (mlp_of_row + (layer.convolves() ? convolution_of_row : attention_of_row));
    if (layer.convolves()) continue;
    if (!layer.attends_to_windows)
      pairs += rows * rows_of_step * share * share;
    else
      for (const int64_t cells : windows.lengths)
        pairs += static_cast<double>(cells * cells) * static_cast<double>(patches * patches);
  }
  double of_merger = 0; // products
  if (merger_) {
    const int64_t square = config_.merged_side() * config_.merged_side(), mlp = square * config_.intermediate_size;
    pairs += rows * merged;
    of_merger = rows * 4 * product_flops(width, width) +
                rows / merged * (product_flops(square * width, mlp) + product_flops(mlp, width));
  }
  const ForwardFlops embed{product_flops(patch_weight_.value().size(1), width) * rows, 0},
      layers{row * rows + of_merger, attention_pair_flops(width) * pairs};
  return with_backward(embed, trains, false) + with_backward(layers, trains, trains);
}

at::Tensor CellVit::squares_of(const CellLayout& layout) const {
  if (layout.squares == 0) return {};
  const int64_t times = config_.temporal_patch_size;
  std::vector<int64_t> squares;
  int64_t begin = 0;
  for (const ImageGrid& image : layout.images)
    for (int64_t step = 0; step < image.steps; ++step, begin += image.step_cells() * image.step_frames)
      for (int64_t cell = 0; cell < image.step_cells(); ++cell)
        for (int64_t time = 0; time < times; ++time)
          squares.push_back(begin + cell + (image.is_video() ? time * image.step_cells() : 0));
  squares.resize(static_cast<size_t>(layout.slots * times), layout.squares - 1);
  return at::tensor(squares, at::kLong).view({layout.slots, times});
}

at::Tensor CellVit::cells_of(const at::Tensor& frames, const PackMaps& maps) const {
  if (const auto found = maps.tensors.find(squares_map); found != maps.tensors.end())
    return frames.index_select(0, found->second).unflatten(0, {-1, config_.temporal_patch_size});
  return has_windows() ? frames.index_select(0, maps.tensors.at(cells_map)) : frames;
}

Value CellVit::Linear::operator()(Tape& tape, Operations& ops, const Value& x, const Value& residual) const {
  if (!bounds[0].defined()) return ops.linear(tape, x, layer, residual);
  const Value read = ops::clamp(tape, x, bounds[0], bounds[1]);
  const Value made = ops::clamp(tape, ops.linear(tape, read, layer.weight, layer.bias), bounds[2], bounds[3]);
  return residual.data.defined() ? ops::add(tape, made, residual) : made;
}

Value CellVit::attend(Tape& tape, Operations& ops, const Layer& layer, const Value& normed, const Segments& segments,
                      const Places& places) const {
  const int64_t heads = config_.num_attention_heads, kv = config_.key_heads(), dim = config_.head_dim();
  const Value first = layer.qkv[0](tape, ops, normed);
  if (layer.convolves()) return ops::gated_convolution(tape, first, layer.taps, places.squares);
  ops::Heads q{first, 0, heads}, k{first, heads * dim, kv}, v{first, (heads + kv) * dim, kv};
  if (layer.qkv.size() > 1) {
    k = {layer.qkv[1](tape, ops, normed), 0, kv};
    v = {layer.qkv[2](tape, ops, normed), 0, kv};
  }
  const double epsilon = config_.layer_norm_eps;
  if (layer.q_norm.defined()) {
    q = {ops.rmsnorm_heads(tape, q, dim, layer.q_norm, epsilon), 0, heads};
    k = {ops.rmsnorm_heads(tape, k, dim, layer.k_norm, epsilon), 0, kv};
  }
  ops::AttentionShape shape{dim};
  if (norms_branches_) {
    for (ops::Heads* turned : {&q, &k}) turned->value = ops::swap_inner_quarters(tape, turned->value, dim);
    v = {ops.rmsnorm_heads(tape, v, dim, {}, epsilon), 0, kv};
    shape.score_factor = std::sqrt(static_cast<double>(dim));
  }
  if (rotates_) ops.rotate(tape, q, k, v, places.positions, places.positions, dim, rotary_);
  return ops.attention(tape, q, k, v, segments, segments, shape);
}

Value CellVit::pass(Tape& tape, Operations& ops, const Layer& layer, const Value& x, const Segments& segments,
                    const Places& places) const {
  const Value read = attend(tape, ops, layer, layer.before_attention(tape, ops, x), segments, places);
  if (norms_branches_) return finish_normed(tape, ops, layer, x, read);
  const Value attended = layer.out(tape, ops, read, x);
  const Value normed = layer.before_mlp(tape, ops, attended);
  const Operations::Layer &up = layer.up[0].layer, &down = layer.down.layer;
  if (!is_gated_) return ops.gelu_mlp(tape, normed, up, down, attended, nullptr, gelu_of(config_));
  return ops.linear_of_swiglu(tape, ops.linear(tape, normed, up.weight, up.bias), down, attended);
}

Value CellVit::finish_normed(Tape& tape, Operations& ops, const Layer& layer, const Value& x, const Value& read) const {
  const Value branch = layer.after_attention(tape, ops, layer.out(tape, ops, read));
  const auto [normed, attended] = ops.rmsnorm(tape, branch, x, layer.before_mlp.weight, layer.before_mlp.epsilon);
  const Value gate = layer.up[0](tape, ops, normed);
  const Value gated =
      layer.up.size() > 1 ? ops.geglu(tape, gate, layer.up[1](tape, ops, normed)) : ops.geglu(tape, gate);
  return ops::add(tape, layer.after_mlp(tape, ops, layer.down(tape, ops, gated)), attended);
}

} // namespace fvlm::model
