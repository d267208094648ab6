#include "evaluation/boxes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace fvlm::evaluation {
namespace {

using Weights = std::vector<std::vector<double>>; // [expected][answered]

// Reads a text from its beginning on.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool done() const { return text_.empty(); }
  void skip() { text_.remove_prefix(1); }

  // What stands here and is taken; otherwise nothing is taken.
  bool take(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  // The numbers between brackets.
  std::optional<std::vector<double>> take_group(char open, char close) {
    Scanner ahead = *this;
    if (!ahead.take({&open, 1})) return {};
    std::vector<double> numbers;
    for (ahead.take_space(); !ahead.take({&close, 1}); ahead.take_space()) {
      if (!numbers.empty() && ahead.take(",")) ahead.take_space();
      const auto number = ahead.take_number();
      if (!number) return {};
      numbers.push_back(*number);
    }
    *this = ahead;
    return numbers;
  }

  // The number of a <loc0123>.
  std::optional<double> take_location() {
    Scanner ahead = *this;
    if (!ahead.take("<loc")) return {};
    const auto number = ahead.take_number();
    if (!number || !ahead.take(">")) return {};
    *this = ahead;
    return number;
  }

  void take_space() {
    while (!text_.empty() && std::string_view(" \t\n\r").find(text_.front()) != std::string_view::npos) skip();
  }

 private:
  std::optional<double> take_number() {
    double value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return {};
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return value;
  }

  std::string_view text_;
};

void add(const std::vector<double>& numbers, std::vector<Region>& regions) {
  if (numbers.size() == 4) regions.push_back({numbers[0], numbers[1], numbers[2], numbers[3]});
  if (numbers.size() == 2) regions.push_back({numbers[0], numbers[1], numbers[0], numbers[1], true});
}

// The second corner behind a first one: ",(x2,y2)".
std::optional<std::vector<double>> take_corner(Scanner& text) {
  Scanner ahead = text;
  ahead.take_space();
  if (!ahead.take(",")) return {};
  ahead.take_space();
  const auto corner = ahead.take_group('(', ')');
  if (!corner || corner->size() != 2) return {};
  text = ahead;
  return corner;
}

double area(const Region& box) {
  return std::max(0.0, box.right - box.left) * std::max(0.0, box.bottom - box.top);
}

double overlap(const Region& one, const Region& other) {
  const double shared = area({std::max(one.left, other.left), std::max(one.top, other.top),
                              std::min(one.right, other.right), std::min(one.bottom, other.bottom)});
  const double both = area(one) + area(other) - shared;
  return both > 0 ? shared / both : 0;
}

bool holds(const Region& box, const Region& point) {
  return point.left >= box.left && point.left <= box.right && point.top >= box.top && point.top <= box.bottom;
}

// The largest sum of weights of pairs in which each row and each column is once at most: the Hungarian algorithm, with
// potentials of rows and columns. There are no more rows than columns.
double best_pairing(const Weights& weights) {
  const size_t rows = weights.size(), columns = weights.front().size();
  constexpr double infinite = std::numeric_limits<double>::infinity();
  std::vector<double> of_row(rows + 1), of_column(columns + 1);
  std::vector<size_t> row_of(columns + 1, 0), before(columns + 1); // from 1; 0: none
  for (size_t added = 1; added <= rows; ++added) {
    std::vector<double> least(columns + 1, infinite);
    std::vector<bool> seen(columns + 1, false);
    size_t column = 0;
    row_of[0] = added;
    while (row_of[column] != 0) {
      seen[column] = true;
      size_t next = 0;
      double step = infinite;
      for (size_t each = 1; each <= columns; ++each) {
        if (seen[each]) continue;
        const size_t row = row_of[column];
        const double cost = -weights[row - 1][each - 1] - of_row[row] - of_column[each];
        if (cost < least[each]) least[each] = cost, before[each] = column;
        if (least[each] < step) step = least[each], next = each;
      }
      for (size_t each = 0; each <= columns; ++each)
        if (seen[each])
          of_row[row_of[each]] += step, of_column[each] -= step;
        else
          least[each] -= step;
      column = next;
    }
    for (; column != 0; column = before[column]) row_of[column] = row_of[before[column]];
  }
  double sum = 0;
  for (size_t column = 1; column <= columns; ++column)
    if (row_of[column] != 0) sum += weights[row_of[column] - 1][column - 1];
  return sum;
}

template <class Weight>
double paired(const std::vector<Region>& answered, const std::vector<Region>& expected, const Weight& weight) {
  if (answered.empty() || expected.empty()) return 0;
  const bool is_longer = answered.size() > expected.size();
  Weights weights;
  for (const Region& row : is_longer ? expected : answered) {
    weights.emplace_back();
    for (const Region& column : is_longer ? answered : expected)
      weights.back().push_back(is_longer ? weight(row, column) : weight(column, row));
  }
  return best_pairing(weights) / static_cast<double>(std::max(answered.size(), expected.size()));
}

std::vector<Region> only(const std::vector<Region>& all, bool points) {
  std::vector<Region> some;
  std::ranges::copy_if(all, std::back_inserter(some), [&](const Region& each) { return each.is_point == points; });
  return some;
}

template <class Weight>
double best(const std::vector<Region>& answered, const Answers& expected, const Weight& weight) {
  double highest = 0;
  for (const std::string& each : expected)
    highest = std::max(highest, paired(answered, only(regions_in(each), false), weight));
  return highest;
}

} // namespace

std::vector<Region> regions_in(std::string_view text) {
  std::vector<Region> regions;
  for (Scanner left(text); !left.done();) {
    std::vector<double> locations;
    while (locations.size() < 4)
      if (const auto number = left.take_location())
        locations.push_back(*number);
      else
        break;
    if (!locations.empty()) {
      add(locations, regions);
    } else if (auto corner = left.take_group('(', ')')) {
      const auto other = corner->size() == 2 ? take_corner(left) : std::nullopt;
      if (other) corner->insert(corner->end(), other->begin(), other->end());
      add(*corner, regions);
    } else if (const auto numbers = left.take_group('[', ']')) {
      add(*numbers, regions);
    } else {
      left.skip();
    }
  }
  return regions;
}

double iou(const std::string& answer, const Answers& expected) {
  return best(only(regions_in(answer), false), expected, overlap);
}

double box_accuracy(const std::string& answer, const Answers& expected) {
  const std::vector<Region> all = regions_in(answer);
  const bool has_boxes = std::ranges::any_of(all, [](const Region& each) { return !each.is_point; });
  return best(only(all, !has_boxes), expected, [&](const Region& box, const Region& answered) {
    return has_boxes ? (overlap(box, answered) >= 0.5 ? 1.0 : 0.0) : (holds(box, answered) ? 1.0 : 0.0);
  });
}

} // namespace fvlm::evaluation
