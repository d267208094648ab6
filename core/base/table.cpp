#include "base/table.h"

#include "base/terminal.h"
#include "base/text.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace fvlm {
namespace {

bool is_number(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) ||
                           (cell.size() > 1 && cell[0] == '-' && std::isdigit(static_cast<unsigned char>(cell[1]))));
}

} // namespace

TextTable::TextTable(std::vector<std::string> header) : header_(std::move(header)) {}

void TextTable::row(std::vector<std::string> cells) {
  if (cells.size() != header_.size()) throw std::logic_error("a table row needs one cell for each column");
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  size_t columns = header_.size();
  std::vector<size_t> width(columns);
  std::vector<bool> right(columns, !rows_.empty());
  for (size_t c = 0; c < columns; ++c) {
    width[c] = display_width(header_[c]);
    for (const auto& row : rows_) {
      width[c] = std::max(width[c], display_width(row[c]));
      if (!row[c].empty() && !is_number(row[c])) right[c] = false;
    }
  }
  std::string out;
  auto line = [&](const std::vector<std::string>& cells, bool bold) {
    std::string text;
    for (size_t c = 0; c < columns; ++c) {
      std::string space(width[c] - display_width(cells[c]), ' ');
      std::string cell = bold ? styled(cells[c], Style::bold) : cells[c];
      text += right[c] ? space + cell : c + 1 < columns ? cell + space : cell;
      if (c + 1 < columns) text += "  ";
    }
    out += text + '\n';
  };
  line(header_, true);
  for (const auto& row : rows_) line(row, false);
  return out;
}

} // namespace fvlm
