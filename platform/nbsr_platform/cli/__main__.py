"""`python -m nbsr_platform.cli` is the `nbsr` command, as `python -m nbsr_platform` is."""

from nbsr_platform.base.starting import starting

with starting():
    from nbsr_platform.cli.app import main

    main()
