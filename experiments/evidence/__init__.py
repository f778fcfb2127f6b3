"""The measurements of docs/evidence: a file has what is measured of a run, and what is reported.

``PYTHONPATH=experiments python -m evidence circuits`` measures, prints JSON and writes
``docs/evidence/circuits.md``; ``docs/evidence/README.md`` says what each shows. A module has
``measure``, which takes a run, ``report``, which takes the rows and gives the parts of its page,
``reports/NAME.md``, and ``runs`` if its runs are not those of ``evidence/recipes.py``.
"""
