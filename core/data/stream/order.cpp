#include "data/stream/order.h"

#include "base/hash.h"
#include "data/stream/permutation.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {

Order::Order(std::vector<int64_t> sizes, uint64_t seed, std::string name)
    : sizes_(std::move(sizes)), seed_(seed), name_(std::move(name)), draws_(seed_, name_ + "/mix") {}

Order Order::shuffled(const plan::Mix& mix, std::vector<int64_t> sizes, uint64_t seed, std::string name,
                      int64_t samples) {
  Order order(std::move(sizes), seed, std::move(name));
  order.shuffles_ = true;
  order.mix_ = mix;
  order.samples_ = samples;
  return order;
}

Order Order::once(std::vector<int64_t> sizes) {
  return {std::move(sizes), 0, ""};
}

bool Order::spent(const State& state, size_t source) const {
  const int64_t epochs = shuffles_ ? mix_.sources[source].epochs : 1;
  return sizes_[source] == 0 || (epochs > 0 && state.drawn[source] >= epochs * sizes_[source]);
}

// By the shares of those that are not spent.
std::optional<size_t> Order::source_at(const State& state) const {
  std::vector<double> shares(sizes_.size(), 1);
  if (shuffles_)
    shares = mix_.shares(samples_ > 0 ? static_cast<double>(state.position) / static_cast<double>(samples_) : 0);
  double sum = 0;
  std::optional<size_t> last;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (spent(state, i)) shares[i] = 0;
    sum += shares[i];
    if (shares[i] > 0 && (shuffles_ || !last)) last = i;
  }
  if (!last || !shuffles_) return last;
  double rest = sum * draws_.uniform(static_cast<uint64_t>(state.position));
  for (size_t i = 0; i < *last; ++i) {
    rest -= shares[i];
    if (rest < 0) return i;
  }
  return last;
}

std::optional<DrawnSample> Order::next(State& state) const {
  const auto source = source_at(state);
  if (!source) return {};
  const int64_t count = state.drawn[*source]++, size = sizes_[*source];
  DrawnSample drawn{state.position++, *source, count / size, count % size};
  if (shuffles_) {
    const Permutation order(static_cast<uint64_t>(size), seed_, fmt::format("{}/{}/{}", name_, *source, drawn.epoch));
    drawn.sample = static_cast<int64_t>(order.at(static_cast<uint64_t>(drawn.sample)));
  }
  return drawn;
}

std::optional<Order> Order::of_length(int64_t samples) const {
  const auto changes = [](const plan::Source& source) { return source.weight.points.size() > 1; };
  if (std::ranges::any_of(mix_.sources, changes)) return {};
  Order order = *this;
  order.samples_ = samples;
  return order;
}

int64_t Order::most_unusable() const {
  int64_t most = 100;
  for (const int64_t size : sizes_) most = std::min<int64_t>(10'000, most + 10 * std::min<int64_t>(size, 1000));
  return most;
}

uint64_t Order::fingerprint() const {
  std::string text = fmt::format("{} {} {} {} {}", shuffles_, seed_, name_, samples_, fmt::join(sizes_, ","));
  if (shuffles_) {
    if (mix_.text_ratio) text += fmt::format(" text {}", *mix_.text_ratio);
    for (const auto& source : mix_.sources)
      text += fmt::format(" {} {} {}", source.epochs, !source.text_only(), fmt::join(source.weight.points, ","));
  }
  return xxh64(text);
}

} // namespace fvlm
