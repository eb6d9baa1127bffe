#include "daemon/control/lookups.hpp"

#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"

namespace probed::control {

// On a worker: a list of the target's symbols.
template <typename T, typename List>
void Lookups::look_up(const Client& client, pid_t pid, Shape<T> shape, Reply<std::string> reply, List list) {
  struct Found {
    std::shared_ptr<const symbols::TargetSymbols> symbols;
    std::string list;
  };
  const auto make = [this, pid, shape = std::move(shape), list = std::move(list)]() -> Result<Found> {
    auto symbols = symbols::TargetSymbols::load(pid, parts_.modules);
    if (!symbols) return std::move(symbols).error();
    const Result<std::vector<T>> found = list(**symbols);
    if (!found) return found.error();
    return Found{*symbols, shape(*found)};
  };
  at_work(client.user(), Work::look, make, [this, who = client.id(), pid, reply](Result<Found> found) {
    if (!found) return reply(std::move(found).error());
    auto same = parts_.access.check_same_program(who, pid, *found->symbols);
    same ? reply(std::move(found->list)) : reply(std::move(same).error());
  });
}

void Lookups::functions(Client& client, pid_t pid, std::string pattern, std::size_t limit,
                        Shape<symbols::Function> shape, Reply<std::string> reply) {
  look_up<symbols::Function>(
      client, pid, std::move(shape), std::move(reply),
      [pattern = std::move(pattern), limit](const auto& symbols) { return symbols.list_functions(pattern, limit); });
}

void Lookups::variables(Client& client, pid_t pid, std::string location, Shape<dwarf::VisibleVariable> shape,
                        Reply<std::string> reply) {
  auto parsed = lang::parse_definition(location);
  if (!parsed) return reply(std::move(parsed).error());
  look_up<dwarf::VisibleVariable>(
      client, pid, std::move(shape), std::move(reply),
      [where = std::move(parsed->location)](const auto& symbols) { return symbols.list_variables(where); });
}

void Lookups::lines(Client& client, pid_t pid, std::string file, std::size_t limit, Shape<symbols::SourceLine> shape,
                    Reply<std::string> reply) {
  look_up<symbols::SourceLine>(
      client, pid, std::move(shape), std::move(reply),
      [file = std::move(file), limit](const auto& symbols) { return symbols.list_lines(file, limit); });
}

void Lookups::usdt(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::UsdtProbe> shape,
                   Reply<std::string> reply) {
  look_up<symbols::UsdtProbe>(
      client, pid, std::move(shape), std::move(reply),
      [pattern = std::move(pattern), limit](const auto& symbols) { return symbols.list_usdt(pattern, limit); });
}

}  // namespace probed::control
