JÀæ‹<Dæ‹<DEèŠBró9?ró9?ˆ¤Cæ‹<Dæ‹<DEèŠBró9?ró9?ˆ¤CC<CDC<CDCôB÷CôB÷C8:ÜCC<CDC<CDCôB÷CôB÷C8:ÜC6òÉD6òÉD²Ä'EöéÔDöéÔDâAC6òÉD6òÉD²Ä'EöéÔDöéÔDâAC˜2TE˜2TEe	ZE
*@E
*@EÄÈE˜2TE˜2TEe	ZE
*@E
*@EÄÈE