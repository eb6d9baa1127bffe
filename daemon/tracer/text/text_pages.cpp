// See text_pages.hpp.
#include "daemon/tracer/text/text_pages.hpp"

#include <algorithm>

#include "daemon/tracer/kernel/memory.hpp"
#include "proto/base/check.hpp"

namespace probed::tracer {

TextPages::TextPages(TargetMemory& memory, std::span<const symbols::Mapping> maps) : memory_(memory) {
  for (const symbols::Mapping& m : maps)
    if (m.readable && !m.writable && !m.shared && !m.path.starts_with("[v"))
      quiet_.emplace_back(m.start.value / kPage, m.end.value / kPage);
  memory_.gather(this);
}

TextPages::~TextPages() { memory_.gather(nullptr); }

// Calls each(page, offset in it, offset in the whole, size) for every page of it.
template <class Each>
bool TextPages::each_piece(RemoteAddr at, std::size_t size, Each&& each) {
  for (std::uint64_t number = at.value / kPage; number * kPage < at.value + size; ++number)
    if (!page(number)) return false;
  for (std::size_t done = 0; done < size;) {
    const RemoteAddr here = at + done;
    const std::size_t piece = std::min<std::size_t>(size - done, kPage - here.value % kPage);
    each(*page(here.value / kPage), static_cast<std::size_t>(here.value % kPage), done, piece);
    done += piece;
  }
  return true;
}

bool TextPages::read(RemoteAddr from, std::span<std::byte> to) {
  PROBED_CHECK(to.size() <= kSmall, "gathered reads are small");
  return each_piece(from, to.size(), [&](const Page& p, std::size_t offset, std::size_t done, std::size_t size) {
    std::copy_n(p.now.begin() + offset, size, to.begin() + static_cast<std::ptrdiff_t>(done));
  });
}

bool TextPages::write(RemoteAddr to, std::span<const std::byte> from) {
  return each_piece(to, from.size(), [&](Page& p, std::size_t offset, std::size_t done, std::size_t size) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(done), size, p.now.begin() + offset);
    p.dirty = true;
  });
}

TextPages::Page* TextPages::page(std::uint64_t number) {
  if (last_ && last_number_ == number) return last_;
  auto it = pages_.find(number);
  if (it == pages_.end()) {
    if (!load(number)) return nullptr;
    it = pages_.find(number);
  }
  last_number_ = number;
  return last_ = it->second.get();
}

// The page, and those behind it that are in the same mapping and not there yet.
bool TextPages::load(std::uint64_t number) {
  const auto in = std::ranges::find_if(quiet_, [&](const auto& q) { return number >= q.first && number < q.second; });
  if (in == quiet_.end()) return false;
  std::size_t count = 1;
  while (count < kRun && number + count < in->second && !pages_.contains(number + count)) ++count;
  std::array<std::byte, kRun * kPage> bytes;
  const std::size_t got = memory_.read_some(RemoteAddr{number * kPage}, std::span(bytes).first(count * kPage)) / kPage;
  for (std::size_t i = 0; i < got; ++i) {
    auto fresh = std::make_unique<Page>();
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(i * kPage), kPage, fresh->before.begin());
    fresh->now = fresh->before;
    pages_.emplace(number + i, std::move(fresh));
  }
  return got > 0;
}

std::optional<RemoteAddr> TextPages::flush() {
  std::vector<std::uint64_t> dirty;
  for (const auto& [number, page] : pages_)
    if (page->dirty) dirty.push_back(number);
  std::ranges::sort(dirty);
  std::optional<RemoteAddr> failed;
  memory_.gather(nullptr);  // these go to the memory itself
  for (std::size_t i = 0; i < dirty.size() && !failed;) {
    std::size_t count = 1;
    while (count < kRun && i + count < dirty.size() && dirty[i + count] == dirty[i] + count) ++count;
    if (!write_run(std::span(dirty).subspan(i, count))) failed = RemoteAddr{dirty[i] * kPage};
    i += count;
  }
  memory_.gather(this);
  last_ = nullptr;
  pages_.clear();
  return failed;
}

// Pages one after the other. False: the program has changed them meanwhile, or they can't be written.
bool TextPages::write_run(std::span<const std::uint64_t> numbers) {
  const RemoteAddr at{numbers.front() * kPage};
  const std::size_t size = numbers.size() * kPage;
  std::array<std::byte, kRun * kPage> wanted, there;
  bool unchanged = memory_.read_some(at, std::span(there).first(size)) == size;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Page& page = *pages_.at(numbers[i]);
    unchanged = unchanged && std::equal(page.before.begin(), page.before.end(), there.begin() + i * kPage);
    std::ranges::copy(page.now, wanted.begin() + i * kPage);
  }
  return unchanged && memory_.write(at, std::span(wanted).first(size)) &&
         memory_.read_some(at, std::span(there).first(size)) == size &&
         std::equal(wanted.begin(), wanted.begin() + size, there.begin());
}

}  // namespace probed::tracer
