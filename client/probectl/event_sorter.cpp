// See event_sorter.hpp.
#include "client/probectl/event_sorter.hpp"

#include <algorithm>

namespace probed::client {

void EventSorter::add(std::uint64_t time, std::string text, Clock::time_point now) {
  if (time < gone_on_) ++late_;
  newest_ = std::max(newest_, time);
  hold(time, {std::move(text), false}, now);
}

void EventSorter::add_note(std::string text, Clock::time_point now) { hold(newest_, {std::move(text), true}, now); }

void EventSorter::hold(std::uint64_t time, Held held, Clock::time_point now) {
  const Key key{time, added_++};
  heap_.push_back({key, std::move(held)});
  std::ranges::push_heap(heap_, is_later);
  arrivals_.push_back({now, key});
}

void EventSorter::pop(const Take& take) {
  std::ranges::pop_heap(heap_, is_later);
  Item item = std::move(heap_.back());
  heap_.pop_back();
  if (!item.held.is_note) gone_on_ = std::max(gone_on_, item.key.first);
  take(std::move(item.held));
}

void EventSorter::release(Clock::time_point now, const Take& take) {
  while (!arrivals_.empty() && arrivals_.front().at + bounds_.window <= now) {
    until_ = std::max(until_, arrivals_.front().key);
    arrivals_.pop_front();
  }
  while (!heap_.empty() &&
         (heap_.front().key <= until_ || heap_.front().key.first <= gone_on_ || heap_.size() > bounds_.events))
    pop(take);
  // Of what has gone on before its turn nobody needs to know any more when it came.
  while (!arrivals_.empty() && (heap_.empty() || arrivals_.front().key < heap_.front().key)) arrivals_.pop_front();
}

void EventSorter::release_all(const Take& take) {
  while (!heap_.empty()) pop(take);
  arrivals_.clear();
}

std::optional<Clock::time_point> EventSorter::due() const {
  if (arrivals_.empty()) return std::nullopt;
  return arrivals_.front().at + bounds_.window;
}

}  // namespace probed::client
