"""List stored settings for `specbench list tunes`."""

from specbench.cli.options import say
from specbench.log.methods import tree_label
from specbench.report.console import TextTable, text_table


def tunes_table() -> TextTable:
    """Return a table of stored settings, with a row per method and tune, or per unreadable file."""
    from specbench.settings.tuned_settings import stored_tunes

    rows = []
    for tune in stored_tunes():
        if tune.file is None:
            rows.append(["-", "-", f"UNREADABLE: {tune.error}", "-", "-", "-", tune.path.name])
            continue
        fits = tune.file.fits
        machine = f"{fits.get('machine', '-')}, threads: {fits.get('threads', '-')}"
        for method, options in tune.file.methods.items():
            settings = ", ".join(
                f"{name}={tree_label(str(option)) if name == 'tree' else option}"
                for name, option in options.items()
            )
            temperature = fits.get("temperature", "-")
            row = [tune.model, method, settings, temperature, machine, tune.date, tune.path.name]
            rows.append(row)
    headings = ["model", "method", "settings", "sampling", "machine", "tuned", "file"]
    return text_table(headings, rows)


def say_tunes_folder() -> None:
    """Say where tunes are, and how to forget them."""
    from specbench.data.cache import CACHE_VARIABLE
    from specbench.settings.tuned_settings import tunes_folders

    folder, *former = tunes_folders()
    say(f"Folder: {folder}; {CACHE_VARIABLE} moves it.")
    for older in former:
        say(f"Tunes of older versions: {older}")
    say("To forget some: specbench tune --forget MODEL, FILE or all")
