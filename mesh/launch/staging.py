"""Model files on the nodes: copied to a folder of the node's own, and told apart by what is in them.

A file's mark is a SHA-256: of every byte, or (sampled) of its size and seventeen blocks spread over it. Sizes and times
are never asked: shared storage has lied about both. POSIX sh with coreutils, because a node need have no Python.
"""

from __future__ import annotations

import shlex

from mesh.launch.commands import Step, at_home, composed_folder
from mesh.launch.config import LaunchConfig, Node
from mesh.launch.ranks import CACHE_IN_CONTAINER
from mesh.launch.recipe import Recipe, RecipeFile, Staging

LEDGER = ".mesh-staging-ledger"
SAMPLE_BYTES = 65_536
SAMPLES = 16

# mark FILE prints the SHA-256 of the whole file ($full = 1, or a small one) or of its samples.
_MARK = f"""mark() {{
  n=$(stat -Lc %s "$1") || return 1
  if [ "$full" = 1 ] || [ "$n" -le {SAMPLE_BYTES * (SAMPLES + 1)} ]; then sha256sum <"$1" | cut -d' ' -f1; return; fi
  {{ echo "$n"; i=0; while [ $i -lt {SAMPLES} ]; do
    dd if="$1" bs={SAMPLE_BYTES} count=1 skip=$(( n / {SAMPLES} * i / {SAMPLE_BYTES} )) 2>/dev/null; i=$((i + 1)); done
    tail -c {SAMPLE_BYTES} "$1"; }} | sha256sum | cut -d' ' -f1
}}"""

# snapshot ROOT prints the folder of the pinned commit, or of the one that the cache calls main.
_SNAPSHOT = """snapshot() {
  if [ -n "$commit" ]; then c=$commit; elif [ -f "$1/refs/main" ]; then c=$(cat "$1/refs/main"); else return 1; fi
  [ -d "$1/snapshots/$c" ] && echo "$1/snapshots/$c"
}"""

_MIRROR = r"""[ "$src" = "$dst" ] && exit 0
mkdir -p "$dst"
led="$ledger"; touch "$led"
if from=$(snapshot "$src"); then :; else
  if to=$(snapshot "$dst"); then
    (cd "$to" && find . -type f -o -type l) | LC_ALL=C sort | while read -r f; do f=${f#./}
      m=$(mark "$to/$f") || exit 1
      was=$(awk -v k="$repo/$f" '$2 == k {print $1}' "$led")
      [ -z "$was" ] || [ "$was" = "$m" ] || {
        echo "$repo/$f: changed in the mirror, and there is no source" >&2; exit 1; }
      [ -n "$was" ] || echo "$m $repo/$f" >>"$led"
    done || exit 1
    echo "adopted"; exit 0
  fi
  echo "$repo: neither in $src nor in $dst; huggingface-cli download $repo" >&2; exit 1
fi
to="$dst/snapshots/${from##*/}"; mkdir -p "$to" "$dst/refs"
(cd "$from" && find . -type f -o -type l) | LC_ALL=C sort | while read -r f; do f=${f#./}
  m=$(mark "$from/$f") || exit 1
  if [ -f "$to/$f" ] && [ "$(mark "$to/$f")" = "$m" ]; then :; else
    mkdir -p "$(dirname "$to/$f")"
    part="$to/$f.part-$$"
    cp -L --sparse=always "$from/$f" "$part" && [ "$(mark "$part")" = "$m" ] && mv "$part" "$to/$f" ||
      { rm -f "$part"; echo "$repo/$f: could not be copied" >&2; exit 1; }
    echo "copied $f"
  fi
  grep -v " $repo/$f$" "$led" >"$led.new-$$"; echo "$m $repo/$f" >>"$led.new-$$"; mv "$led.new-$$" "$led"
done || exit 1
printf %s "${from##*/}" >"$dst/refs/main"
"""


def repos_of(recipe: Recipe, block: Staging | None) -> list[str]:
    """What is staged: what the block names, else the model, the models of mounts and those of a composed model."""
    if block is not None and block.repos:
        found = list(block.repos)
    else:
        found = [] if recipe.local_model or recipe.composed_model is not None else [recipe.repo]
        found += [mount.repo for mount in recipe.extra_mounts if mount.repo is not None]
        found += [] if recipe.composed_model is None else [source.repo for source in recipe.composed_model.sources]
    skip = () if block is None else block.skip
    return [repo for repo in dict.fromkeys(found) if repo not in skip]


def mirror_steps(
    node: Node, config: LaunchConfig, file: RecipeFile, mirror: str | None, *, force: bool = False
) -> list[Step]:
    """Fill the recipe's mirrors, or the one that was asked for, from the shared cache."""
    recipe = file.recipe
    blocks: list[tuple[str, list[str]]] = [
        (block.dst, repos_of(recipe, block)) for block in recipe.staging if block.kind == "hub-mirror"
    ]
    if mirror is not None:
        blocks.append((mirror, repos_of(recipe, None)))
    steps = []
    for dst, repos in blocks:
        for repo in repos:
            steps.append(
                Step(
                    node.name,
                    f"stage {repo}",
                    mirror_command(
                        config.hf_cache_dir, dst, repo, recipe.revision if repo == recipe.repo else None, full=force
                    ),
                )
            )
    return steps


def mirror_command(cache: str, dst: str, repo: str, commit: str | None, *, full: bool) -> str:
    slug = "models--" + repo.replace("/", "--")
    head = [
        "set -u",
        f"full={int(full)}; commit={shlex.quote(commit or '')}; repo={shlex.quote(repo)}",
        f"src={at_home(f'{cache}/hub/{slug}')}; dst={at_home(f'{dst}/hub/{slug}')}",
        f"ledger={at_home(f'{dst}/hub/{LEDGER}')}",
        'mkdir -p "$(dirname "$ledger")"',
    ]
    return "\n".join([*head, _MARK, _SNAPSHOT, _MIRROR])


def composed_weights_step(node: Node, run: str, cache: str, *, full: bool = False) -> Step:
    """Prints `mark name` of every file of the run's composed folder, whose links lead into the container's cache."""
    body = (
        f"c={at_home(cache)}; d={shlex.quote(composed_folder(run))}\n"
        '(cd "$d" && find . -type f -o -type l) | sort | while read -r f; do t="$d/$f"\n'
        f'if [ -L "$t" ]; then t=$(readlink "$t"); t="$c${{t#{CACHE_IN_CONTAINER}}}"; fi\n'
        'm=$(mark "$t") || { echo "${f#./}: leads nowhere" >&2; exit 1; }; echo "$m ${f#./}"; done'
    )
    return Step(node.name, "weights", "\n".join([f"full={int(full)}", _MARK, body]))


def weights_step(node: Node, recipe: Recipe, cache: str, *, full: bool = False) -> Step | None:
    """Prints `mark name` of every file of the model on this node, sorted: what ranks are compared by. None where the
    engine has no weights, or the launcher cannot know which they are."""
    head = [f"full={int(full)}", _MARK]
    if recipe.composed_model is not None or (recipe.engine == "mesh" and recipe.model in ("reference", "packaged")):
        return None
    if recipe.local_model:
        body = (
            f"m={at_home(recipe.model)}\n"
            'if [ -d "$m" ]; then (cd "$m" && find . -type f -o -type l) | LC_ALL=C sort | while read -r f; do '
            'echo "$(mark "$m/$f") ${f#./}"; done\n'
            'elif [ -f "$m" ]; then echo "$(mark "$m") ${m##*/}"\n'
            'else echo "$m: not there" >&2; exit 1; fi'
        )
        return Step(node.name, "weights", "\n".join([*head, body]))
    slug = "models--" + recipe.repo.replace("/", "--")
    hint = f"{recipe.repo}: not in the model cache; huggingface-cli download {recipe.repo}"
    body = (
        f"commit={shlex.quote(recipe.revision or '')}\n"
        f"s=$(snapshot {at_home(f'{cache}/hub/{slug}')}) || "
        f"{{ echo {shlex.quote(hint)} >&2; exit 1; }}\n"
        '(cd "$s" && find . -type f -o -type l) | LC_ALL=C sort | while read -r f; do '
        'echo "$(mark "$s/$f") ${f#./}"; done'
    )
    return Step(node.name, "weights", "\n".join([*head, _SNAPSHOT, body]))
