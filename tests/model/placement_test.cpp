// Where visual rows stand: before a text, or in place of its placeholders, one or several for each frame, each once and
// in order or as the placeholders are numbered.
#include "recipe/placeholders.h"
#include "tiny.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <gmock/gmock.h>
#include <set>

using namespace fvlm;
using namespace fvlm::model;
using testing::HasSubstr;

namespace {

constexpr int64_t placeholder = visual_placeholder;

std::vector<int64_t> integers(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous().view(-1);
  return {wide.const_data_ptr<int64_t>(), wide.const_data_ptr<int64_t>() + wide.numel()};
}

// A sample whose texts each have their placeholders in places of their own, or none.
Sample random_placed(Dice& dice, int64_t rows_per_frame) {
  Sample sample;
  const int64_t frames = dice.upto(0, 3), texts = dice.upto(1, 3);
  if (frames > 0) sample.frames = at::zeros({frames, 3, 8, 8});
  for (int64_t text = 0; text < texts; ++text) {
    Text& made = sample.texts.emplace_back();
    const auto insert = [&](int64_t id) {
      made.tokens.insert(made.tokens.begin() + dice.upto(0, std::ssize(made.tokens)), id);
    };
    for (int64_t i = dice.upto(1, 12); i > 0; --i) made.tokens.push_back(dice.upto(1, 52));
    const int64_t rows = frames * rows_per_frame, kind = dice.upto(0, 3);
    if (kind == 1 || kind == 2)
      for (int64_t i = 0; i < rows; ++i) insert(placeholder);
    else if (kind == 3 && frames > 0)
      for (int64_t i = dice.upto(1, 2 * rows); i > 0; --i) insert(numbered_placeholder(dice.upto(0, rows - 1)));
    for (size_t i = 0; i < made.tokens.size(); ++i) made.is_label.push_back(dice.upto(0, 1) == 1);
  }
  return sample;
}

// The decoder's rows one by one, as a reader of the definition would write them down.
struct SlowRows {
  struct Row {
    int64_t token = 0;   // of text
    int64_t visual = -1; // or which visual token of the pack it is
    int64_t text = 0, position = 0;
  };
  struct Label {
    int64_t row, target, text;
    auto operator<=>(const Label&) const = default;
  };
  std::vector<Row> rows;
  std::vector<Label> labels;

  SlowRows(const std::vector<Sample>& samples, int64_t rows_per_frame) {
    int64_t first = 0, number = 0;
    for (const Sample& sample : samples) {
      const int64_t visual = (sample.frames.defined() ? sample.frames.size(0) : 0) * rows_per_frame;
      for (const Text& text : sample.texts) {
        int64_t next = first, position = 0;
        bool in_place = false;
        for (const int64_t token : text.tokens) in_place = in_place || token < 0;
        if (!in_place)
          for (int64_t i = 0; i < visual; ++i) rows.push_back({0, next++, number, position++});
        for (size_t i = 0; i < text.tokens.size(); ++i) {
          if (text.tokens[i] < 0) {
            const bool numbered = text.tokens[i] != placeholder;
            rows.push_back({0, numbered ? first - 16 - text.tokens[i] : next++, number, position++});
            continue;
          }
          if (i > 0 && text.is_label[i]) labels.push_back({std::ssize(rows) - 1, text.tokens[i], number});
          rows.push_back({text.tokens[i], -1, number, position++});
        }
        ++number;
      }
      first += visual;
    }
  }
};

void expect_rows(Pack& pack, const SlowRows& slow, const Capacity& capacity, int64_t rows_per_frame) {
  const auto tokens = integers(pack.sequence.tokens), places = integers(pack.sequence.visual_rows),
             positions = integers(pack.texts.positions), starts = integers(pack.texts.cu_seqlens);
  const auto is_text = integers(pack.sequence.is_text);
  std::vector<int64_t> visual_at(static_cast<size_t>(capacity.rows), -1);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] == capacity.rows) continue; // padding
    int64_t& at = visual_at.at(static_cast<size_t>(places[i]));
    ASSERT_EQ(at, -1) << "two visual tokens in row " << places[i];
    at = pack.visual_source.defined() ? integers(pack.visual_source)[i] : static_cast<int64_t>(i);
    ASSERT_LT(at, capacity.frames * rows_per_frame);
  }
  for (size_t row = 0; row < visual_at.size(); ++row) {
    if (row >= slow.rows.size()) {
      EXPECT_EQ(visual_at[row], -1) << row;
      EXPECT_EQ(is_text[row], 0) << row;
      continue;
    }
    const SlowRows::Row& wanted = slow.rows[row];
    EXPECT_EQ(visual_at[row], wanted.visual) << row;
    EXPECT_EQ(is_text[row], wanted.visual < 0) << row;
    if (wanted.visual < 0) {
      EXPECT_EQ(tokens[row], wanted.token) << row;
    }
    EXPECT_EQ(positions[row], wanted.position) << row;
    EXPECT_LE(starts.at(static_cast<size_t>(wanted.text)), static_cast<int64_t>(row));
    EXPECT_LT(static_cast<int64_t>(row), starts.at(static_cast<size_t>(wanted.text) + 1));
  }
  const auto rows = integers(pack.labels.rows), targets = integers(pack.labels.targets),
             texts = integers(pack.labels.sequences);
  std::vector<SlowRows::Label> labels;
  for (size_t i = 0; i < targets.size(); ++i)
    if (targets[i] >= 0) labels.push_back({rows[i], targets[i], texts[i]});
  EXPECT_EQ(labels, slow.labels);
}

TEST(Placement, EveryRowIsFilledOnceAsASlowReferenceSays) {
  Tiny tiny;
  Dice dice(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const int64_t rows_per_frame = dice.upto(1, 4);
    std::vector<Sample> samples;
    for (int64_t i = dice.upto(1, 4); i > 0; --i) samples.push_back(random_placed(dice, rows_per_frame));
    Capacity capacity = Capacity::of(samples, rows_per_frame);
    for (int64_t Capacity::*size : {&Capacity::frames, &Capacity::rows, &Capacity::sequences, &Capacity::labels,
                                    &Capacity::longest_sequence, &Capacity::longest_video})
      capacity.*size += round % 2 * dice.upto(0, 5);
    Pack pack = make_pack(samples, capacity, {tiny.model.connector(), 5, rows_per_frame}, at::kFloat, Frames::apart);
    const SlowRows slow(samples, rows_per_frame);
    ASSERT_EQ(Capacity::of(samples, rows_per_frame).rows, std::ssize(slow.rows));
    if (capacity.frames > 0) expect_rows(pack, slow, capacity, rows_per_frame);
  }
}

TEST(Placement, PacksOfNumberedPlaceholdersHaveOneShape) {
  Tiny tiny;
  std::vector<std::vector<int64_t>> shapes;
  for (const int64_t rows : {2, 3, 4}) {
    Sample sample{at::zeros({2, 3, 8, 8}), {{{5, 6}, {false, true}}}};
    for (int64_t row = 0; row < rows; ++row) sample.texts[0].tokens.push_back(numbered_placeholder(3 - row));
    sample.texts[0].is_label.resize(sample.texts[0].tokens.size());
    const Capacity capacity{
        .frames = 2, .rows = 9, .sequences = 1, .labels = 2, .longest_sequence = 9, .longest_video = 2};
    Pack pack = make_pack({sample}, capacity, {tiny.model.connector(), 5, 2}, at::kFloat);
    EXPECT_EQ(integers(pack.visual_source)[0], 3);
    shapes.push_back(pack.shape());
  }
  EXPECT_EQ(shapes[0], shapes[1]);
  EXPECT_EQ(shapes[0], shapes[2]) << "although it has as many placeholders as visual rows";
}

TEST(Placement, NumberedPlaceholdersAreOfRowsThatThereAre) {
  Tiny tiny;
  const auto refusal = [&](std::vector<int64_t> tokens) -> std::string {
    const std::vector<bool> labels(tokens.size());
    const Sample sample{at::zeros({2, 3, 8, 8}), {{std::move(tokens), labels}}};
    try {
      (void)make_pack({sample}, Capacity::of({sample}, 2), {tiny.model.connector(), 5, 2}, at::kFloat);
      return "it was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      return error.text();
    }
  };
  EXPECT_EQ(refusal({5, numbered_placeholder(3), 6}), "it was accepted");
  EXPECT_THAT(refusal({5, numbered_placeholder(4), 6}),
              HasSubstr("1 placeholder for visual rows, 1 of them numbered up to 4, and its 2 frames become 4 rows"));
  EXPECT_THAT(refusal({5, shrunk_placeholder({4, 4, 0, 0}, 0)}),
              HasSubstr("placeholders of a shrunk picture of 17 frames, and its sample has 2 frames"));
  EXPECT_THAT(refusal({5, numbered_placeholder(0), placeholder, placeholder, placeholder}),
              HasSubstr("4 placeholders for visual rows, 1 of them numbered up to 0"));
}

TEST(Placement, PlaceholdersAreAsManyAsVisualRowsOrNone) {
  Tiny tiny;
  const Sample sample{at::zeros({2, 3, 8, 8}), {{{5, placeholder, 6, placeholder, 7}, std::vector<bool>(5, true)}}};
  const auto pack = [&](int64_t rows_per_frame) {
    return make_pack({sample}, Capacity::of({sample}, rows_per_frame), {tiny.model.connector(), 5, rows_per_frame},
                     at::kFloat);
  };
  EXPECT_EQ(integers(pack(1).sequence.visual_rows), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(integers(pack(1).labels.targets), (std::vector<int64_t>{6, 7})) << "a placeholder is no label";
  EXPECT_EQ(integers(pack(1).labels.rows), (std::vector<int64_t>{1, 3})) << "visual rows predict what follows them";
  try {
    (void)pack(4);
    FAIL() << "two placeholders for eight rows";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_THAT(error.text(), HasSubstr("sample 0"));
    EXPECT_THAT(error.text(), HasSubstr("2 placeholders for visual rows, and its 2 frames become 8 rows, 4 each"));
  }
}

} // namespace
